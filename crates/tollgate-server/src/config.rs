//! The configuration: a file, overridden by the environment, overridden by flags.
//!
//! A [`Config`] that exists is valid: limits and rules are built, certificates and tokens are read.
//! All errors are reported at once, as [`ConfigErrors`].

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate::{FailurePolicy, Limit, Paths, RuleSet};
use tollgate_http::{Headers, Identity};

use crate::envoy::Domains;
use crate::secret::Secret;
use crate::tls::Tls;

mod credentials;
mod error;
mod origin;
mod reader;
mod rules;
mod server;
mod setting;
mod source;
mod store;
mod summary;
mod telemetry;
mod tree;
mod values;
mod warnings;

pub(crate) use error::ConfigError;
pub use error::ConfigErrors;
pub(crate) use error::nearest;
pub use origin::Origin;
pub(crate) use reader::{At, Section};
pub(crate) use rules::Extent;
pub use server::{Addresses, Fixed, LogFormat};
pub(crate) use server::{OFF, WORKERS_MAX};
pub(crate) use setting::{ParseError, Setting};
pub(crate) use source::{Format, Source};
pub use store::Store;
pub use telemetry::Telemetry;
pub(crate) use tree::{Node, Scalar, ScalarKind, Value};
pub(crate) use warnings::{BUILT_IN, meant};

/// Every setting, explained: the output of `tollgate init`.
pub const STARTER: &str = include_str!("../tollgate.toml");

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings that need a restart.
    pub fixed: Fixed,
    /// Settings that a reload changes.
    pub settings: Settings,
    /// The rules, which a reload changes too.
    pub rules: RuleSet,
    /// Likely mistakes that are not errors.
    pub warnings: Vec<String>,
    /// The text of all its files.
    pub(crate) text: String,
    /// The extent of the file.
    pub(crate) extent: Extent,
}

/// Settings that a reload changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The rate limit header fields of responses.
    pub headers: Headers,
    /// Client identification.
    pub identity: Identity,
    /// How rules see paths.
    pub paths: Paths,
    /// The admin token; one is generated at the start if this is `None`.
    pub admin_token: Option<Secret>,
    /// The delay of the response to a wrong token.
    pub failed_auth_delay: Duration,
    /// Whether client names are hashed in logs.
    pub hash_keys_in_logs: bool,
    /// Whether gRPC descriptors may refund units.
    pub grpc_refunds: bool,
    /// How many callers a gRPC peer counts as: it asks for the clients of a proxy.
    pub grpc_share: u32,
    /// Whether a request that no rule covers is denied.
    pub deny_uncovered: bool,
    /// The attributes that callers send, beside those of requests to `/check` and `/auth`.
    pub attributes: Vec<String>,
    /// TLS certificates.
    pub(crate) tls: Option<Tls>,
    /// The failure policy of rules that set none.
    pub on_store_error: FailurePolicy,
    /// The YAML of Envoy's rate limit service: a file or a directory.
    pub envoy_config: Option<PathBuf>,
    /// The domains defined there.
    pub(crate) domains: Arc<Domains>,
}

impl Config {
    /// The content that was lost since `extent` and `before`, if the file looks truncated.
    pub(crate) fn lost_since(&self, extent: Extent, before: &Settings) -> Option<String> {
        if self.extent < extent {
            let lost = if self.extent == Extent::Empty { "is empty" } else { "has no rules" };
            return Some(format!("the file {lost} any more; if that is intended, restart the server"));
        }
        let domain = self.settings.domains.emptied_since(&before.domains)?;
        Some(format!("the domain {domain:?} has no limit any more; if that is intended, remove its file"))
    }
}

/// Command-line flags, which override everything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The HTTP listen address.
    pub http: Option<String>,
    /// The gRPC listen address.
    pub grpc: Option<String>,
    /// The listen address of the Redis protocol.
    pub resp: Option<String>,
    /// The limit per client, in place of rules.
    pub limit: Option<Limit>,
    /// The number of worker threads.
    pub workers: Option<usize>,
    /// The YAML of Envoy's rate limit service.
    pub envoy_config: Option<PathBuf>,
    /// The URL of Redis.
    pub redis: Option<String>,
    /// The data directory.
    pub data: Option<PathBuf>,
}

const POLICIES: [(&str, FailurePolicy); 3] =
    [("open", FailurePolicy::Open), ("closed", FailurePolicy::Closed), ("local", FailurePolicy::Local)];

/// The name of a failure policy.
pub(crate) fn policy_name(policy: FailurePolicy) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// Whether a file name ends in `.yaml` or `.yml`: the rate limit service's format.
pub(crate) fn is_yaml(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "yaml" || kind == "yml")
}
