//! The laws over the stores of this crate.

use tollgate::MemoryStore;
use tollgate_testkit::{FaultyStore, MapCounter};

tollgate_testkit::conformance!(memory, MemoryStore::new);
tollgate_testkit::conformance!(memory_through_a_wrapper_that_awaits, || FaultyStore::new(MemoryStore::new()));
tollgate_testkit::conformance!(counter, counter = MapCounter::new);
