//! The server, its edges injected: a listener, a limiter and a signal to stop go in, so that tests
//! bind port 0 and own the clock.
//!
//! A transport owns two translations and nothing else: its wire into attributes, and a decision
//! back into its wire.
#![warn(clippy::unwrap_used)]

pub mod ask;
pub mod cli;
mod http;
mod serve;

pub use serve::{serve, serve_until_signal};
