//! The server. Its edges are injected (listeners, configuration, clock, stop signal), so tests bind
//! port 0 and control the time.
//!
//! A transport makes two translations and nothing else: wire to attributes, and decision to wire.
#![warn(clippy::unwrap_used)]
// The futures of a connection nest down to those of the Redis client: about as deep as the default.
#![recursion_limit = "256"]

mod app;
mod backend;
mod buffers;
mod caller;
pub mod cli;
pub mod config;
mod connection;
mod descriptors;
mod envoy;
mod grpc;
mod held;
mod http;
mod inline;
mod latency;
mod live;
mod loading;
mod log;
mod metrics;
mod moment;
mod printable;
mod reload;
mod remote;
mod resp;
mod secret;
mod serve;
mod simulate;
mod telemetry;
mod tls;
mod token_file;
mod top;
mod upkeep;
mod value;

pub use app::App;
pub use serve::{Listeners, serve};
