//! The limiter and its parts, through the public interface. One program: each one more
//! would compile the same generic code again.

mod check_all;
mod conformance;
mod exact_rates;
mod failure;
mod fast_path;
mod holds;
mod islands;
mod limiter;
mod memory;
mod notation;
mod overflow;
mod queue;
mod regressions;
mod replaced;
mod slots;
mod state;
mod waiting;
mod warnings;
