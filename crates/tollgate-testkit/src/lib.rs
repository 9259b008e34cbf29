//! What tollgate promises, as tests that any store can be put to.
//!
//! * [`Laws`]: the laws B1 to B11 as properties over random limits and schedules, for any
//!   [`Store`](tollgate::Store).
//! * [`conformance!`]: all of them as test functions, in one line.
//! * [`oracle`]: each algorithm once more, slow and obvious, in rational arithmetic.
//! * [`FaultyStore`]: a store that fails, hangs and lies on command.
//! * [`MapCounter`]: the smallest thing that [`CounterStore`](tollgate::CounterStore) makes a store
//!   of.
//!
//! The simulated clock is [`tollgate::ManualClock`]: it stands still, jumps and runs backwards as
//! it is told.
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
mod scenario;
mod world;

pub use bound::most;
pub use counter::MapCounter;
pub use counter_laws::CounterLaws;
pub use faulty::{Fault, FaultyStore};
pub use laws::Laws;
pub use scenario::{Step, any_limit, replacements, steps};
pub use world::{World, run};
