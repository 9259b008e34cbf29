//! Conformance tests for stores: the promises of tollgate as laws.
//!
//! * [`Laws`]: the laws B1 to B12 as properties over random limits and schedules, for any
//!   [`Store`](tollgate::Store).
//! * [`conformance!`]: all laws as test functions, in one line.
//! * [`oracle`]: a reference implementation of each algorithm, slow and obvious, in rational
//!   arithmetic.
//! * [`FaultyStore`]: a store that fails, hangs and lies on command.
//! * [`killed_streams`]: processes under SIGKILL, for a store that other processes can open.
//! * [`MapCounter`]: the smallest [`Counter`](tollgate::Counter).
//!
//! The simulated clock is [`tollgate::ManualClock`]: a test makes it stand still, jump and run
//! backwards.
//!
//! ```
//! // In the tests of your own store:
//! # use tollgate::MemoryStore as MyStore;
//! tollgate_testkit::conformance!(my_store, MyStore::new);
//! ```

mod bound;
mod conformance;
mod counter;
mod counter_laws;
mod faulty;
mod laws;
pub mod oracle;
mod random;
mod scenario;
mod streams;
mod world;

pub use bound::max_admitted;
pub use counter::MapCounter;
pub use counter_laws::CounterLaws;
pub use faulty::{Fault, FaultyStore};
pub use laws::Laws;
pub use random::Random;
pub use scenario::{Step, any_limit, replacements, steps};
pub use streams::killed_streams;
pub use world::{World, run};
