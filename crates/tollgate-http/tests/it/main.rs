//! The layer and its helpers, over real sockets. One program: each one more would
//! compile the same generic code again.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/python.rs"]
mod python;

mod by_response;
mod examples;
mod invariants;
mod nested;
mod slots;
mod socket;
mod streams;
mod structured;
mod trust;
mod waiting;
