//! The server, its edges injected: listeners, a limiter's configuration, a clock and a signal to
//! stop go in, so that tests bind port 0 and own the time.
//!
//! A transport owns two translations and nothing else: its wire into attributes, and a decision
//! back into its wire.
#![warn(clippy::unwrap_used)]

mod app;
pub mod ask;
mod backend;
pub mod cli;
pub mod config;
mod connection;
mod descriptors;
mod envoy;
mod grpc;
mod http;
mod inline;
mod latency;
mod loading;
mod log;
mod metrics;
mod reload;
pub mod resp;
mod secret;
mod serve;
mod tls;
mod top;
mod upkeep;
mod value;

pub use app::App;
pub use backend::Backend;
pub use secret::Secret;
pub use serve::{Listeners, serve, serve_until_signal};
