//! Envoy's rate limit service over gRPC: the real server, and clients like Envoy.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use common::{Server, directory, eventually};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::auth::v3::CheckRequest;
use envoy_types::pb::envoy::service::auth::v3::authorization_client::AuthorizationClient;
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use futures_util::stream;
use python::python_with;
use rls::{Envoy, back, descriptor, fields, hits, left, limit, request, under};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};
use serde_json::{Value, json};
use tollgate::MINUTE;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/network.rs"]
mod network;
#[path = "../../../tollgate-http/tests/common/python.rs"]
mod python;
#[path = "../../../tollgate-redis/tests/common/mod.rs"]
mod redis_server;
#[path = "../common/rls.rs"]
mod rls;

mod costs;
mod deciding;
mod described;
mod failing;
mod foreign;
mod health;
mod inline;
mod leavers;
mod odd;
mod slots;
mod strangers;
mod tls;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Starts a server with this configuration. No two tests may use the same name.
fn server(name: &str, config: &str) -> (Server, Envoy) {
    let file = directory(&format!("grpc-{name}")).join("tollgate.toml");
    fs::write(&file, config).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    (server, envoy)
}

/// A server without configuration: 10 a minute per client.
fn bare() -> (Server, Envoy) {
    let server = Server::everywhere(&[]);
    let envoy = Envoy::of(&server);
    (server, envoy)
}

fn client(name: &str) -> RateLimitDescriptor {
    descriptor(&[("client", name)])
}

/// The status code of a rejected request.
#[track_caller]
fn refusal(envoy: &Envoy, domain: &str, descriptors: &[RateLimitDescriptor]) -> tonic::Code {
    envoy.send(request(domain, descriptors)).expect_err("it is refused").code()
}
