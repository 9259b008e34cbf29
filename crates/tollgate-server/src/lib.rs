//! The server. Its edges are injected (listeners, configuration, clock, stop signal), so tests bind
//! port 0 and control the time.
//!
//! A transport makes two translations and nothing else: wire to attributes, and decision to wire.
#![warn(clippy::unwrap_used)]

mod app;
mod ask;
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
mod moment;
mod reload;
mod resp;
mod secret;
mod serve;
mod tls;
mod top;
mod upkeep;
mod value;

pub use app::App;
pub use serve::{Listeners, serve};
