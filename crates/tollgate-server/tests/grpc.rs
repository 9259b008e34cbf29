//! Envoy's rate limit service over gRPC: the real server, and clients as Envoy is one.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
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

mod common;
#[path = "../../tollgate-http/tests/common/python.rs"]
mod python;
#[path = "common/rls.rs"]
mod rls;

const SERVICE: &str = "envoy.service.ratelimit.v3.RateLimitService";

/// Starts a server with this configuration. No two tests may use the same name.
fn server(name: &str, config: &str) -> (Server, Envoy) {
    let file = directory(&format!("grpc-{name}")).join("tollgate.toml");
    fs::write(&file, config).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    (server, envoy)
}

/// One that was told nothing: 10 a minute for each client.
fn bare() -> (Server, Envoy) {
    let server = Server::everywhere(&[]);
    let envoy = Envoy::of(&server);
    (server, envoy)
}

fn client(name: &str) -> RateLimitDescriptor {
    descriptor(&[("client", name)])
}

/// How a request is refused.
#[track_caller]
fn refusal(envoy: &Envoy, domain: &str, descriptors: &[RateLimitDescriptor]) -> tonic::Code {
    envoy.send(request(domain, descriptors)).expect_err("it is refused").code()
}

mod deciding {
    use super::*;

    #[test]
    fn f2_one_descriptor_counts_down_and_is_then_over_its_limit() {
        let (_server, envoy) = bare();
        for turn in 0..12_u32 {
            let answer = envoy.ask("edge", &[client("alice")]);
            let status = &answer.statuses[0];
            let denied = turn >= 10;
            assert_eq!(status.code(), if denied { Code::OverLimit } else { Code::Ok }, "{answer:?}");
            assert_eq!(limit(status), Some((10, Unit::Minute, "per-client")));
            assert_eq!(status.limit_remaining, 9_u32.saturating_sub(turn));
            let until_reset = status.duration_until_reset.unwrap();
            let nanos = until_reset.seconds * 1_000_000_000 + i64::from(until_reset.nanos);
            assert!((1..=60_000_000_000).contains(&nanos), "{answer:?}");
            let told = format!("\"per-client\";r={};t=", status.limit_remaining);
            assert!(fields(&answer, "ratelimit")[0].starts_with(&told), "{answer:?}");
            assert_eq!(fields(&answer, "ratelimit-policy"), ["\"per-client\";q=10;w=60"]);
            let retry_after: Vec<u64> =
                fields(&answer, "retry-after").iter().map(|seconds| seconds.parse().unwrap()).collect();
            assert_eq!(retry_after.len(), usize::from(denied), "{answer:?}");
            assert!(retry_after.iter().all(|seconds| (1..=60).contains(seconds)), "{answer:?}");
            assert!(answer.request_headers_to_add.is_empty() && answer.raw_body.is_empty(), "{answer:?}");
        }
        assert_eq!(envoy.left("edge", &client("bob")), Some(10), "b5: others notice nothing");
    }

    #[test]
    fn f2_the_header_fields_are_of_the_chosen_style() {
        let x = ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"].as_slice();
        for (style, expected) in [
            ("standard", ["ratelimit", "ratelimit-policy"].as_slice()),
            ("trio", &["ratelimit-limit", "ratelimit-policy", "ratelimit-remaining", "ratelimit-reset"]),
            ("x", x),
            ("x-epoch", x),
            ("off", &[]),
        ] {
            let (_server, envoy) = server(
                &format!("style-{style}"),
                &format!(
                    "[server]\nheaders = \"{style}\"\n\
                     [[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"1/hour fixed\""
                ),
            );
            for denied in [false, true] {
                let answer = envoy.ask("edge", &[client("alice")]);
                let mut names: Vec<&str> =
                    answer.response_headers_to_add.iter().map(|field| field.key.as_str()).collect();
                names.sort_unstable();
                let mut expected = expected.to_vec();
                expected.extend(denied.then_some("retry-after"));
                expected.sort_unstable();
                assert_eq!(names, expected, "{style}");
            }
        }
    }

    #[test]
    fn b8_there_is_a_status_for_each_descriptor_in_their_order() {
        let (_server, envoy) = bare();
        let descriptors = [
            descriptor(&[("nobody", "asked")]),
            client("a"),
            descriptor(&[]),
            hits(&client("b"), 4),
            descriptor(&[("other", "x")]),
        ];
        let answer = envoy.ask("edge", &descriptors);
        let told: Vec<_> = answer.statuses.iter().map(|status| (status.code(), left(status))).collect();
        assert_eq!(
            told,
            [(Code::Ok, None), (Code::Ok, Some(9)), (Code::Ok, None), (Code::Ok, Some(6)), (Code::Ok, None)]
        );
        let free = envoy.ask("edge", &descriptors[..1]);
        assert!(free.statuses[0].duration_until_reset.is_none(), "{free:?}");
        assert!(free.response_headers_to_add.is_empty(), "there is nothing to tell: {free:?}");
    }

    #[test]
    fn b8_if_one_descriptor_is_denied_nothing_is_taken_from_the_others() {
        let (_server, envoy) = bare();
        let (empty, full) = (client("empty"), client("full"));
        assert!(envoy.allows("edge", &hits(&empty, 10)));
        for order in [[&full, &empty], [&empty, &full]] {
            let answer = envoy.ask("edge", &order.map(Clone::clone));
            assert_eq!(answer.overall_code(), Code::OverLimit);
            for (descriptor, status) in order.iter().zip(&answer.statuses) {
                let expected = if *descriptor == &empty { (Code::OverLimit, 0) } else { (Code::Ok, 10) };
                assert_eq!((status.code(), status.limit_remaining), expected, "b3: {answer:?}");
            }
            assert_eq!(fields(&answer, "retry-after").len(), 1, "{answer:?}");
        }
        assert_eq!(envoy.left("edge", &full), Some(10));
    }

    #[test]
    fn b8_the_same_budget_twice_is_charged_once_with_the_larger_cost() {
        let (_server, envoy) = bare();
        let alice = client("alice");
        let answer = envoy.ask("edge", &[alice.clone(), hits(&alice, 3), hits(&alice, 2)]);
        assert_eq!(answer.overall_code(), Code::Ok);
        assert_eq!(fields(&answer, "ratelimit").len(), 1, "{answer:?}");
        assert_eq!(envoy.left("edge", &alice), Some(7));
    }

    #[test]
    fn c2_rules_match_on_the_domain_and_the_entries() {
        let (_server, envoy) = server(
            "match",
            r#"
            [[rule]]
            name = "login"
            match = { domain = "edge", path = "/login" }
            key = ["remote_address"]
            limit = "3/hour fixed"
            [[rule]]
            name = "pair"
            key = ["generic_key", "generic_key.2"]
            limit = "5/hour fixed"
            "#,
        );
        let login = |address: &str, path: &str| descriptor(&[("remote_address", address), ("path", path)]);
        let status = envoy.status("edge", &login("10.0.0.1", "/login"));
        assert_eq!((limit(&status), left(&status)), (Some((3, Unit::Hour, "login")), Some(2)));
        let turned = descriptor(&[("path", "/login"), ("remote_address", "10.0.0.1")]);
        assert_eq!(envoy.left("edge", &turned), Some(2), "the order of attributes means nothing");
        assert_eq!(envoy.left("edge", &login("10.0.0.2", "/login")), Some(3));
        for (domain, free) in [
            ("edge", login("10.0.0.1", "/logins")),
            ("inside", login("10.0.0.1", "/login")),
            ("edge", descriptor(&[("path", "/login")])),
            ("edge", descriptor(&[("generic_key", "a")])),
            // Whoever writes the descriptors does not choose the domain.
            ("inside", descriptor(&[("domain", "edge"), ("path", "/login"), ("remote_address", "10.0.0.1")])),
        ] {
            assert_eq!(envoy.left(domain, &free), None, "{domain} {free:?}");
        }
        let pair = |one, other| descriptor(&[("generic_key", one), ("generic_key", other)]);
        let status = envoy.status("any", &pair("a", "b"));
        assert_eq!((limit(&status), left(&status)), (Some((5, Unit::Hour, "pair")), Some(4)));
        assert_eq!(envoy.left("any", &pair("a", "b")), Some(4));
        assert_eq!(envoy.left("any", &pair("b", "a")), Some(5), "b5");
    }

    #[test]
    fn c2_a_rule_that_only_watches_never_denies() {
        let rule =
            "[[rule]]\nname = \"watched\"\nkey = [\"client\"]\nlimit = \"2/hour fixed\"\nshadow = true";
        let (server, envoy) = server("shadow", rule);
        for left_now in [1, 0, 0, 0] {
            let status = envoy.status("edge", &client("alice"));
            assert_eq!(status.code(), Code::Ok);
            assert_eq!((limit(&status), left(&status)), (Some((2, Unit::Hour, "watched")), Some(left_now)));
        }
        let denied = r#"tollgate_rule_decisions_total{rule="watched",outcome="shadow_denied"}"#;
        assert!(server.metric(denied) >= 2.0);
    }

    #[test]
    fn b8_of_two_limits_the_one_that_decided_is_told() {
        let (_server, envoy) = server(
            "two",
            r#"
            [[rule]]
            name = "spikes"
            key = ["spikes"]
            limit = ["3/min fixed", "5/hour fixed"]
            [[rule]]
            name = "sustained"
            key = ["sustained"]
            limit = ["4/min fixed", "3/hour fixed"]
            "#,
        );
        for (key, told) in
            [("spikes", (3, Unit::Minute, "spikes")), ("sustained", (3, Unit::Hour, "sustained.2"))]
        {
            for (code, left_now) in [(Code::Ok, 2), (Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
                let answer = envoy.ask("edge", &[descriptor(&[(key, "x")])]);
                let status = &answer.statuses[0];
                assert_eq!((status.code(), left(status)), (code, Some(left_now)), "{answer:?}");
                assert_eq!(limit(status), Some(told));
                let policies = fields(&answer, "ratelimit-policy").join(", ");
                assert_eq!(policies.matches(";q=").count(), 2, "both are in the fields: {policies}");
            }
        }
    }

    #[test]
    fn b10_a_budget_is_the_same_however_it_is_asked_for() {
        let (server, envoy) = bare();
        assert!(envoy.allows("edge", &hits(&client("alice"), 4)));
        assert_eq!(server.get("/check/alice").json()["remaining"], 5);
        assert_eq!(envoy.left("edge", &client("alice")), Some(5));
    }
}

mod costs {
    use super::*;

    #[test]
    fn the_requests_cost_is_each_descriptors_unless_it_has_its_own() {
        let (_server, envoy) = bare();
        let ask = |hits_addend: u32, descriptors: &[RateLimitDescriptor]| {
            let answer =
                envoy.send(RateLimitRequest { hits_addend, ..request("edge", descriptors) }).unwrap();
            answer.statuses.iter().map(left).collect::<Vec<_>>()
        };
        let [a, b, c] = ["a", "b", "c"].map(client);
        assert_eq!(ask(0, std::slice::from_ref(&a)), [Some(9)], "nothing said means 1");
        assert_eq!(ask(3, std::slice::from_ref(&a)), [Some(6)]);
        assert_eq!(ask(2, &[a.clone(), hits(&b, 5), hits(&c, 0)]), [Some(4), Some(5), Some(10)]);
        assert_eq!(ask(9, &[hits(&a, 0)]), [Some(4)], "an explicit 0 only looks");
    }

    #[test]
    fn b4_what_can_never_fit_is_denied_with_no_time_to_come_back() {
        let (_server, envoy) = bare();
        for cost in [11, 1 << 40, u64::MAX] {
            let answer = envoy.ask("edge", &[hits(&client("a"), cost)]);
            assert_eq!(answer.overall_code(), Code::OverLimit, "{answer:?}");
            assert!(fields(&answer, "retry-after").is_empty(), "{answer:?}");
        }
        let whole = RateLimitRequest { hits_addend: u32::MAX, ..request("edge", &[client("a")]) };
        assert_eq!(envoy.send(whole).unwrap().overall_code(), Code::OverLimit);
        assert_eq!(envoy.left("edge", &client("a")), Some(10));
    }

    #[test]
    fn c5_negative_hits_give_back_and_never_more_than_was_taken() {
        let (_server, envoy) = bare();
        let alice = client("alice");
        assert!(envoy.allows("edge", &hits(&alice, 10)));
        assert!(!envoy.allows("edge", &alice));
        assert_eq!(left(&envoy.status("edge", &back(&alice))), Some(1), "nothing said means 1");
        assert_eq!(left(&envoy.status("edge", &back(&hits(&alice, 3)))), Some(4));
        assert_eq!(left(&envoy.status("edge", &back(&hits(&alice, 0)))), Some(4));
        let status = envoy.status("edge", &back(&hits(&alice, 1_000)));
        assert_eq!((status.code(), left(&status)), (Code::Ok, Some(10)));
        assert_eq!(left(&envoy.status("edge", &back(&client("new")))), Some(10));
    }
}

mod brought {
    use super::*;

    #[test]
    fn c4_a_descriptor_with_its_own_limit_has_that_limit_and_no_rules() {
        let (_server, envoy) = bare();
        let alice = client("alice");
        let own = under(&alice, 3, RateLimitUnit::Hour);
        for (code, left_now) in [(Code::Ok, 2), (Code::Ok, 1), (Code::Ok, 0), (Code::OverLimit, 0)] {
            let status = envoy.status("edge", &own);
            assert_eq!((status.code(), left(&status)), (code, Some(left_now)));
            let told = limit(&status).unwrap();
            assert_eq!((told.0, told.1), (3, Unit::Hour));
        }
        assert_eq!(envoy.left("edge", &alice), Some(10), "the rules know nothing of it");
        assert!(envoy.allows("edge", &hits(&alice, 10)));
        assert_eq!(envoy.left("edge", &under(&client("bob"), 3, RateLimitUnit::Hour)), Some(3));
        assert_eq!(envoy.left("edge", &own), Some(0));
        for (unit, told) in [
            (RateLimitUnit::Second, Unit::Second),
            (RateLimitUnit::Minute, Unit::Minute),
            (RateLimitUnit::Day, Unit::Day),
            (RateLimitUnit::Month, Unit::Month),
            (RateLimitUnit::Year, Unit::Year),
        ] {
            let status = envoy.status("edge", &under(&client(told.as_str_name()), u32::MAX, unit));
            let told = (u32::MAX, told);
            assert_eq!(limit(&status).map(|limit| (limit.0, limit.1)), Some(told), "{status:?}");
        }
    }

    #[test]
    fn b11_another_limit_later_keeps_what_is_in_use() {
        let (_server, envoy) = bare();
        let under = |count| under(&client("alice"), count, RateLimitUnit::Hour);
        assert!(envoy.allows("edge", &hits(&under(10), 10)));
        assert!(!envoy.allows("edge", &under(10)));
        assert_eq!(envoy.left("edge", &under(100)), Some(90));
        assert!(envoy.allows("edge", &under(100)));
        assert_eq!(envoy.left("edge", &under(100)), Some(89));
        assert_eq!(envoy.left("edge", &under(5)), Some(0), "none left, and no debt");
        assert!(!envoy.allows("edge", &under(5)));
        let daily = super::under(&client("bob"), 7, RateLimitUnit::Hour);
        assert!(envoy.allows("edge", &hits(&daily, 4)));
        assert_eq!(envoy.left("edge", &super::under(&client("bob"), 7, RateLimitUnit::Day)), Some(3));
    }

    #[test]
    fn b8_a_limit_of_nothing_denies_and_takes_nothing_from_the_others() {
        let (_server, envoy) = bare();
        let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
        let own = under(&client("carol"), 5, RateLimitUnit::Hour);
        let answer = envoy.ask("edge", &[client("bob"), nothing.clone(), own.clone()]);
        let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
        assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
        assert_eq!(envoy.left("edge", &client("bob")), Some(10));
        assert_eq!(envoy.left("edge", &own), Some(5));
        assert!(!envoy.allows("edge", &nothing));
        assert!(!envoy.allows("edge", &hits(&nothing, 0)), "b3: not even a look finds something");
    }

    #[test]
    fn f2_a_header_field_of_one_limit_is_there_once_whoever_is_denied() {
        let (_server, envoy) = server("brought-x", "[server]\nheaders = \"x\"");
        let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
        let answer = envoy.ask("edge", &[client("bob"), client("carol"), nothing]);
        for name in ["x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset"] {
            assert!(fields(&answer, name).len() <= 1, "{name} in {answer:?}");
        }
    }

    #[test]
    fn f2_no_time_to_come_back_is_told_if_it_would_be_denied_then_too() {
        let (_server, envoy) = bare();
        assert!(envoy.allows("edge", &hits(&client("bob"), 10)));
        let nothing = under(&client("alice"), 0, RateLimitUnit::Hour);
        let answer = envoy.ask("edge", &[client("bob"), nothing]);
        assert_eq!(answer.overall_code(), Code::OverLimit);
        assert!(fields(&answer, "retry-after").is_empty(), "{answer:?}");
    }

    #[test]
    fn a_unit_that_does_not_exist_is_refused() {
        let (_server, envoy) = bare();
        let mut odd = under(&client("a"), 5, RateLimitUnit::Unknown);
        assert_eq!(refusal(&envoy, "edge", &[client("bob"), odd.clone()]), tonic::Code::InvalidArgument);
        for unit in [99, -1, i32::MAX] {
            odd.limit.as_mut().unwrap().unit = unit;
            assert_eq!(refusal(&envoy, "edge", &[client("bob"), odd.clone()]), tonic::Code::InvalidArgument);
        }
        assert_eq!(envoy.left("edge", &client("bob")), Some(10), "and nothing was taken");
    }

    #[test]
    fn b5_descriptors_that_look_alike_when_joined_are_different() {
        let (_server, envoy) = bare();
        let long = "x".repeat(5_000);
        let all = [
            ("edge", descriptor(&[("a", "bc")])),
            ("edge", descriptor(&[("ab", "c")])),
            ("edge", descriptor(&[("abc", "")])),
            ("edge", descriptor(&[("", "abc")])),
            ("edgea", descriptor(&[("", "bc")])),
            ("edge", descriptor(&[("a", "b"), ("c", "d")])),
            ("edge", descriptor(&[("c", "d"), ("a", "b")])),
            ("edge", descriptor(&[("a", "b,c,d")])),
            ("edge,a", descriptor(&[("b", "c,d")])),
            ("edge", descriptor(&[("a", "b,1:c,1:d")])),
            ("edge", descriptor(&[("a", "b"), ("c,1:d", "")])),
            ("edge", descriptor(&[])),
            ("edge", descriptor(&[("", "")])),
            ("edge", descriptor(&[("", ""), ("", "")])),
            ("edge", descriptor(&[("a", &long)])),
            ("edge", descriptor(&[("a", &format!("{long}x"))])),
            ("edge", descriptor(&[("\0", "\0")])),
            ("edge", descriptor(&[("\0\0", "")])),
        ];
        for (domain, descriptor) in &all {
            let status = envoy.status(domain, &under(descriptor, 3, RateLimitUnit::Hour));
            assert_eq!(left(&status), Some(2), "{domain} {descriptor:?}");
        }
    }
}

mod odd {
    use super::*;

    #[test]
    fn no_domain_and_no_descriptors_are_refused() {
        let (_server, envoy) = bare();
        assert_eq!(refusal(&envoy, "", &[client("a")]), tonic::Code::InvalidArgument);
        assert_eq!(refusal(&envoy, "edge", &[]), tonic::Code::InvalidArgument);
        assert_eq!(envoy.left("edge", &client("a")), Some(10));
    }

    #[test]
    fn b5_odd_values_are_counted_and_are_islands() {
        let (_server, envoy) = bare();
        let long = "x".repeat(5_000);
        let longer = format!("{long}x");
        let edge = "y".repeat(1_024);
        let over_the_edge = "y".repeat(1_025);
        for value in ["", "\0", "\0=", "\0=00", "ü\u{10ffff}", &edge, &over_the_edge, &long, &longer] {
            let status = envoy.status("edge", &hits(&client(value), 10));
            assert_eq!((status.code(), left(&status)), (Code::Ok, Some(0)), "{}", value.len());
            assert!(!envoy.allows("edge", &client(value)), "an error would be an open door");
        }
        assert_eq!(envoy.left("edge", &client("x")), Some(10));
    }

    #[test]
    fn b5_an_odd_domain_is_a_domain() {
        let rule = "[[rule]]\nname = \"by-domain\"\nkey = [\"domain\", \"client\"]\nlimit = \"2/hour fixed\"";
        let (_server, envoy) = server("odd-domain", rule);
        let long = "x".repeat(5_000);
        for domain in ["x", "\0", "ü", &long, &format!("{long}x")] {
            assert!(envoy.allows(domain, &hits(&client("a"), 2)), "{}", domain.len());
            assert!(!envoy.allows(domain, &client("a")));
        }
    }

    #[test]
    fn entries_that_no_rule_knows_change_nothing_however_odd_they_are() {
        let (_server, envoy) = bare();
        let long = "k".repeat(100_000);
        let odd =
            [("client", "a"), ("", ""), (&long, &long), ("\0", "\0"), ("client", "b"), ("client.2", "c")];
        let status = envoy.status("edge", &descriptor(&odd));
        assert_eq!((status.code(), left(&status)), (Code::Ok, Some(9)));
        assert_eq!(envoy.left("edge", &client("a")), Some(9));
    }

    #[test]
    fn as_many_descriptors_as_are_allowed_are_decided_and_more_are_refused() {
        let (_server, envoy) = bare();
        let many: Vec<_> = (0..1_000).map(|number| client(&number.to_string())).collect();
        assert_eq!(refusal(&envoy, "edge", &many), tonic::Code::InvalidArgument);
        let answer = envoy.ask("edge", &many[..256]);
        assert!(answer.statuses.iter().all(|status| left(status) == Some(9)), "{answer:?}");
    }

    #[test]
    fn a_descriptor_of_very_many_entries_is_answered() {
        let (_server, envoy) = bare();
        let mut entries = vec![("client", "a")];
        entries.resize(100_000, ("", ""));
        // Which answer does not matter. One that takes for ever keeps a thread from all others.
        let mut service = RateLimitServiceClient::new(envoy.channel.clone());
        let asked = service.should_rate_limit(request("edge", &[descriptor(&entries)]));
        let answer = envoy.wait(async { tokio::time::timeout(MINUTE / 2, asked).await });
        if let Ok(answer) = answer.expect("an answer, or the server spins") {
            assert_eq!(left(&answer.into_inner().statuses[0]), Some(9));
        }
        assert!(envoy.allows("edge", &client("b")));
    }

    #[test]
    fn a_message_that_is_too_large_is_refused_and_the_connection_lives_on() {
        let (_server, envoy) = bare();
        let large = "x".repeat(2 << 20);
        let code = refusal(&envoy, "edge", &[client("a"), client(&large)]);
        assert!(matches!(code, tonic::Code::ResourceExhausted | tonic::Code::OutOfRange), "{code:?}");
        assert_eq!(envoy.left("edge", &client("a")), Some(10));
    }
}

mod failing {
    use super::*;

    fn config(redis: &str) -> String {
        let rule = |policy: &str| {
            format!(
                "[[rule]]\nname = \"{policy}\"\nkey = [\"{policy}\"]\nlimit = \"8/h fixed\"\n\
                 on_store_error = \"{policy}\"\n"
            )
        };
        let rules = ["open", "closed", "local"].map(rule).concat();
        format!("[store]\nkind = \"redis\"\nurl = \"redis://{redis}\"\ndeadline = \"100ms\"\n{rules}")
    }

    fn assert_the_policy_is_followed(envoy: &Envoy) {
        let [open, closed, local] = ["open", "closed", "local"].map(|policy| descriptor(&[(policy, "x")]));
        for _ in 0..10 {
            assert!(envoy.allows("edge", &open));
            assert!(!envoy.allows("edge", &closed), "and never an error, which Envoy may let pass");
        }
        let answer = envoy.ask("edge", &[open.clone(), closed]);
        assert_eq!(answer.overall_code(), Code::OverLimit);
        assert!(envoy.allows("edge", &under(&open, 1, RateLimitUnit::Hour)));
        assert!(envoy.allows("edge", &back(&open)));
        let admitted = (0..8).filter(|_| envoy.allows("edge", &local)).count();
        assert_eq!(admitted, 2, "a quarter of eight");
        let mut health = HealthClient::new(envoy.channel.clone());
        let check = envoy.wait(health.check(HealthCheckRequest::default())).unwrap();
        assert_eq!(check.into_inner().status(), ServingStatus::NotServing);
    }

    #[test]
    fn e4_without_its_redis_it_follows_the_rules_policy() {
        let (_server, envoy) = server("redis-gone", &config("127.0.0.1:1"));
        assert_the_policy_is_followed(&envoy);
    }

    #[test]
    fn e4_with_a_redis_that_hangs_it_follows_the_rules_policy() {
        let deaf = TcpListener::bind("127.0.0.1:0").unwrap();
        let (_server, envoy) = server("redis-deaf", &config(&deaf.local_addr().unwrap().to_string()));
        assert_the_policy_is_followed(&envoy);
    }
}

mod health {
    use super::*;

    fn asked(service: &str) -> HealthCheckRequest {
        HealthCheckRequest { service: service.into() }
    }

    #[test]
    fn the_server_and_the_service_are_known_and_no_others() {
        let (_server, envoy) = bare();
        let mut health = HealthClient::new(envoy.channel.clone());
        for service in ["", SERVICE] {
            let answer = envoy.wait(health.check(asked(service))).unwrap().into_inner();
            assert_eq!(answer.status(), ServingStatus::Serving);
            let mut told = envoy.wait(health.watch(asked(service))).unwrap().into_inner();
            let first = envoy.wait(told.message()).unwrap().unwrap();
            assert_eq!(first.status(), ServingStatus::Serving);
        }
        let unknown = envoy.wait(health.check(asked("another"))).unwrap_err();
        assert_eq!(unknown.code(), tonic::Code::NotFound);
        let mut told = envoy.wait(health.watch(asked("another"))).unwrap().into_inner();
        let first = envoy.wait(told.message()).unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::ServiceUnknown);
    }

    #[test]
    fn a_server_about_to_stop_says_so_and_goes_on_answering() {
        let (mut server, envoy) = server("stopping", "[server]\nstop_delay = \"10m\"");
        let mut health = HealthClient::new(envoy.channel.clone());
        let mut told = envoy.wait(health.watch(asked(""))).unwrap().into_inner();
        let mut next = || envoy.wait(told.message()).unwrap().map(|answer| answer.status());
        assert_eq!(next(), Some(ServingStatus::Serving));
        server.signal("TERM");
        let mut status = || envoy.wait(health.check(asked(SERVICE))).unwrap().into_inner().status();
        eventually("it says so", || status() == ServingStatus::NotServing);
        assert_eq!(next(), Some(ServingStatus::NotServing), "those who watch are told");
        assert!(envoy.allows("edge", &client("a")));
        assert_eq!(next(), None, "there is nothing more to watch");
        server.signal("TERM");
        drop((told, health, envoy));
        assert_eq!(server.exit_code(), Some(0));
    }
}

mod tls {
    use super::*;

    /// A certificate for `localhost`, with a server that has it.
    fn server(name: &str) -> (Server, CertificateDer<'static>, String) {
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let directory = directory(name);
        fs::write(directory.join("server.pem"), cert.pem()).unwrap();
        fs::write(directory.join("server.key"), signing_key.serialize_pem()).unwrap();
        let file = directory.join("tollgate.toml");
        fs::write(&file, "[server.tls]\ncert = \"server.pem\"\nkey = \"server.key\"").unwrap();
        let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
        (server, cert.der().clone(), cert.pem())
    }

    #[test]
    fn grpc_is_spoken_over_tls_and_not_in_the_clear() {
        let (server, _, pem) = server("grpc-tls");
        let port = server.listens("grpc").rsplit(':').next().unwrap();
        let endpoint = Endpoint::from_shared(format!("https://localhost:{port}")).unwrap();
        let trusting = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem));
        let envoy = Envoy::connect(endpoint.tls_config(trusting).unwrap()).unwrap();
        assert!(envoy.allows("edge", &client("a")));
        assert_eq!(envoy.left("edge", &client("a")), Some(9));
        let clear = Endpoint::from_shared(format!("http://localhost:{port}")).unwrap();
        if let Ok(clear) = Envoy::connect(clear) {
            assert!(clear.send(request("edge", &[client("a")])).is_err());
        }
        assert_eq!(envoy.left("edge", &client("a")), Some(9));
    }

    #[test]
    fn tls_agrees_on_http_2_and_on_nothing_else() {
        let (server, certificate, _) = server("grpc-alpn");
        let handshake = |protocols: &[&[u8]]| {
            let mut roots = RootCertStore::empty();
            roots.add(certificate.clone()).unwrap();
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let config = ClientConfig::builder_with_provider(provider);
            let config = config.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots);
            let mut config = config.with_no_client_auth();
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let name = ServerName::try_from("localhost").unwrap();
            let mut connection = ClientConnection::new(Arc::new(config), name).unwrap();
            let mut stream = TcpStream::connect(server.listens("grpc")).unwrap();
            while connection.is_handshaking() {
                connection.complete_io(&mut stream).ok()?;
            }
            connection.alpn_protocol().map(<[u8]>::to_vec)
        };
        assert_eq!(handshake(&[b"h2"]), Some(b"h2".to_vec()));
        assert_eq!(handshake(&[b"http/1.1", b"h2"]), Some(b"h2".to_vec()));
        assert_eq!(handshake(&[b"http/1.1"]), None);
    }
}

mod strangers {
    use super::*;

    /// What is sent at the beginning of HTTP/2, with settings that say nothing.
    const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

    #[test]
    fn what_is_silent_or_not_grpc_is_closed_and_others_notice_nothing() {
        let (server, envoy) = server("strangers", "[server]\ntimeout = \"100ms\"");
        let open = |words: &[u8]| {
            let mut stream = TcpStream::connect(server.listens("grpc")).unwrap();
            let _ = stream.write_all(words);
            stream
        };
        let too_long_a_frame = [HELLO, b"\xff\xff\xff\0\0\0\0\0\x01"].concat();
        let headers_of_stream_0 = [HELLO, b"\0\0\x01\x01\x05\0\0\0\0\x82"].concat();
        let not_compressed_headers = [HELLO, b"\0\0\x04\x01\x05\0\0\0\x01\xff\xff\xff\xff"].concat();
        let words: [&[u8]; 11] = [
            b"",
            HELLO,
            &HELLO[..10],
            b"GET /check/a HTTP/1.1\r\nhost: x\r\n\r\n",
            b"POST /envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit HTTP/1.1\r\nhost: x\r\n\r\n",
            b"*1\r\n$4\r\nPING\r\n",
            b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03",
            &[0xff; 4_096],
            &too_long_a_frame,
            &headers_of_stream_0,
            &not_compressed_headers,
        ];
        let streams = words.map(open);
        assert!(envoy.allows("edge", &client("a")));
        for (mut stream, words) in streams.into_iter().zip(words) {
            // Each ends only because the server hangs up.
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() < 1_000, "{words:?}: {answer:?}");
        }
        assert!(envoy.allows("edge", &client("a")));
        assert_eq!(server.get("/check/a").json()["remaining"], 7, "and none of that cost anything");
    }

    #[test]
    fn a_service_that_is_not_here_is_unimplemented() {
        let (_server, envoy) = bare();
        let mut other = AuthorizationClient::new(envoy.channel.clone());
        let refused = envoy.wait(other.check(CheckRequest::default())).unwrap_err();
        assert_eq!(refused.code(), tonic::Code::Unimplemented);
    }
}

mod foreign {
    use super::*;

    fn run(package: &str, script: &str, server: &Server) -> Vec<String> {
        let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common").join(script);
        let mut python = Command::new(python_with(package).join("python"));
        let output = python.arg(script).arg(server.listens("grpc")).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
    }

    #[test]
    fn python_learns_the_service_from_the_server_and_is_limited_by_it() {
        let (server, _envoy) = bare();
        let lines = run("grpcio-reflection==1.85.1", "reflection.py", &server);
        for service in [SERVICE, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"] {
            assert!(lines[0].split(' ').any(|known| known == service), "{}", lines[0]);
        }
        let answers: Vec<Value> = lines[1..].iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(answers.len(), 12);
        for (turn, answer) in answers[..11].iter().enumerate() {
            let status = &answer["statuses"][0];
            let code = if turn < 10 { "OK" } else { "OVER_LIMIT" };
            assert_eq!((&answer["overallCode"], &status["code"]), (&json!(code), &json!(code)), "{answer}");
            assert_eq!(
                status["currentLimit"],
                json!({"name": "per-client", "requestsPerUnit": 10, "unit": "MINUTE"})
            );
            assert_eq!(status["limitRemaining"].as_u64().unwrap_or(0), 9_u64.saturating_sub(turn as u64));
        }
        assert_eq!(answers[11], json!({"status": "SERVING"}));
    }

    #[test]
    fn python_asks_for_the_health_of_the_server() {
        let (server, _envoy) = bare();
        let told = run("grpcio-health-checking==1.85.1", "health.py", &server);
        assert_eq!(told, ["SERVING", "SERVING", "SERVING", "SERVING", "NOT_FOUND", "SERVICE_UNKNOWN"]);
    }

    #[test]
    fn both_versions_of_reflection_tell_of_the_services() {
        let (_server, envoy) = bare();
        let mut reflection = ServerReflectionClient::new(envoy.channel.clone());
        let asked = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let told = envoy.wait(async {
            let mut answers =
                reflection.server_reflection_info(stream::iter([asked])).await.unwrap().into_inner();
            answers.message().await.unwrap().unwrap().message_response
        });
        let Some(MessageResponse::ListServicesResponse(list)) = told else { panic!("{told:?}") };
        let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
        assert!(names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
    }
}
