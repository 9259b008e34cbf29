//! The server over real sockets. One program: each one more would be linked with the whole server.

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/network.rs"]
mod network;
#[path = "../common/node.rs"]
mod node;
#[path = "../common/proxy.rs"]
mod proxy;
#[path = "../../../tollgate-http/tests/common/python.rs"]
mod python;
#[path = "../../../tollgate-redis/tests/common/mod.rs"]
mod redis_server;
#[expect(dead_code, reason = "grpc and envoy_config use the rest")]
#[path = "../common/rls.rs"]
mod rls;
#[path = "../common/wire.rs"]
mod wire;

mod access;
mod administration;
mod agree;
mod api;
mod auth;
mod backup;
mod blocks;
mod bodies;
mod browser;
mod budgets;
mod client_limits;
mod config;
mod connections;
mod costs;
mod dashboard;
mod denials;
mod disk;
mod envoy;
mod envoy_tokens;
mod explain;
mod first_hour;
mod first_light;
mod full;
mod leavers;
mod llm;
mod mistakes;
mod openapi;
mod operations;
mod operator;
mod overflow;
mod overload;
mod packaging;
mod paths;
mod proxies;
mod redis;
mod redis_health;
mod reserve;
mod resp_abuse;
mod security;
mod slots;
mod telemetry;
mod top;
mod unread;
mod warnings;
mod window;
