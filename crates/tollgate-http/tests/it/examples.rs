//! The examples behave as documented.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crate::common::{get, send, serve};
use tollgate::{Limit, Limiter, ManualClock, Rule, RuleSet, SECOND, Timestamp};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt as _;

#[path = "../../examples/axum.rs"]
#[expect(dead_code, reason = "its main is not needed here")]
mod plans;
#[path = "../../examples/tonic.rs"]
#[expect(dead_code, reason = "its main is not needed here")]
mod service;

/// The service of the README as it is, except that it listens on a free port.
mod readme {
    mod tokio {
        pub(super) use ::tokio::*;

        pub(super) mod net {
            pub(in super::super) struct TcpListener;

            impl TcpListener {
                pub(in super::super) async fn bind(
                    address: &str,
                ) -> std::io::Result<::tokio::net::TcpListener> {
                    assert_eq!(address, "127.0.0.1:3000");
                    let listener = ::tokio::net::TcpListener::bind("127.0.0.1:0").await?;
                    super::super::LISTENS.set(listener.local_addr()?).expect("one start");
                    Ok(listener)
                }
            }
        }
    }

    pub(super) static LISTENS: std::sync::OnceLock<SocketAddr> = std::sync::OnceLock::new();

    pub(super) fn start() -> SocketAddr {
        std::thread::spawn(main);
        *LISTENS.wait()
    }

    include!("../common/readme.rs");
}

/// The README's door to axum, as it is pasted.
#[test]
fn f1_the_readmes_service_answers_and_denies() {
    let snippet = concat!("```rust,no_run\n", include_str!("../common/readme.rs"), "```");
    assert!(
        include_str!("../../../../README.md").contains(snippet),
        "tests/common/readme.rs is the README's"
    );
    let mut stream = TcpStream::connect(readme::start()).unwrap();
    // More within moments than ten and what a second refills.
    let request = "GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(60);
    stream
        .write_all(
            format!("{request}GET /no HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").as_bytes(),
        )
        .unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).unwrap();
    assert!(answers.starts_with("HTTP/1.1 200 OK\r\n") && answers.contains("hello"), "{answers}");
    assert!(answers.contains("HTTP/1.1 429 ") && answers.contains("\r\nretry-after: 1\r\n"), "{answers}");
}

#[tokio::test]
async fn c4_plans_have_their_own_limits_and_nobody_can_pass_for_another() {
    let server = serve(plans::app().unwrap()).await;
    let status = async |headers: &[(&str, &str)]| send(server, get("/", headers)).await.status.as_u16();
    for turn in 0..4 {
        assert_eq!(status(&[("x-user", "alice")]).await == 200, turn < 3, "alice {turn}");
        assert_eq!(status(&[]).await == 200, turn < 3, "by address {turn}");
    }
    for _ in 0..30 {
        assert_eq!(status(&[("x-user", "bob"), ("x-plan", "gold")]).await, 200);
    }
    assert_eq!(status(&[("x-user", "bob"), ("x-plan", "gold")]).await, 429);
    assert_eq!(status(&[("x-user", "127.0.0.1")]).await, 200, "a name that looks like an address is a name");
}

#[tokio::test]
async fn f4_a_grpc_call_over_the_limit_is_resource_exhausted_and_says_when_to_come_back() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let rules = RuleSet::new([Rule::new("per-client", Limit::per_minute(5)).key(["client"])]).unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
    tokio::spawn(service::serve(listener, limiter));
    let channel = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(channel.connect().await.unwrap());
    for left in (0..5).rev() {
        let answer = client.check(HealthCheckRequest::default()).await.unwrap();
        let expected = format!("\"per-client\";r={left};t=12");
        assert_eq!(answer.metadata().get("ratelimit").unwrap(), expected.as_str());
    }
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.get_details_retry_info().unwrap().retry_delay, Some(12 * SECOND));
    assert_eq!(status.metadata().get("retry-after").unwrap(), "12");
    clock.advance(12 * SECOND);
    assert!(client.check(HealthCheckRequest::default()).await.is_ok());
}
