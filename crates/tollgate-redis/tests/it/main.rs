//! The store on a real Redis. One program: each one more would compile the same generic code
//! again.

#[path = "../common/mod.rs"]
mod common;
#[path = "../node/mod.rs"]
mod node;

mod blocks;
mod cluster;
mod counter;
mod denials;
mod failure;
mod far;
mod fire;
mod health;
mod kills;
mod laws;
mod race;
mod reach;
mod rows;
mod sentinels;
mod streams;
mod truth;
mod undo;
