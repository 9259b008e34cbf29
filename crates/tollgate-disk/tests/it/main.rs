//! The store on a real disk. One program: each one more would compile the same generic code
//! again.

#[path = "../common/mod.rs"]
mod common;

mod blocking;
mod crash;
mod directory;
mod laws;
mod streams;
