//! Calls that are cancelled do no harm to others, with a Redis 6 ms away.

use super::network::{ATTACKER, Network, connect_from};
use super::redis_server::Redis;
use super::strangers::{DATA, HEADERS, HELLO, LAST, RST_STREAM, WHOLE, call_headers, frame};
use super::*;
use prost::Message as _;
use std::time::Duration;

const ROUNDS: usize = 20;

/// Streams of a connection, which have odd numbers.
const STREAMS: u8 = 100;

fn scene(name: &str, network: &Network) -> (Server, Envoy) {
    let config = format!(
        "[store]\nkind = \"redis\"\nurl = \"redis://127.0.0.1:{}\"\nremember_denials = \"0s\"\n\
         # A busy machine may exceed the default.\ndeadline = \"5s\"\n\
         [[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"10/60s fixed\"\n\
         on_store_error = \"open\"\n",
        network.port
    );
    server(name, &config)
}

/// In each round, callers leave once an answer is on its way to the server, and a bystander asks.
fn assert_a_bystander_is_unharmed(
    (server, envoy): &(Server, Envoy),
    network: &Network,
    mut begin_and_leave: impl FnMut(u64),
) {
    let round = |_: &usize| {
        begin_and_leave(network.answered());
        let admitted = envoy.allows("edge", &client("bystander"));
        assert_eq!(server.metric("tollgate_degraded_total"), 0.0);
        admitted
    };
    assert_eq!((0..ROUNDS).filter(round).count(), 10);
    eventually("what they charged stays charged", || envoy.left("edge", &client("leaver")) == Some(0));
}

#[test]
fn e4_cancelled_calls_switch_off_nobodys_limit() {
    let redis = Redis::start(&[]);
    let network = Network::to(redis.port, Duration::from_millis(6));
    let scene = scene("cancelled", &network);
    let endpoint = Endpoint::from_shared(format!("http://{}", scene.0.listens("grpc"))).unwrap();
    let leaver = Envoy::connect(endpoint.local_address(Some(ATTACKER.into()))).unwrap();
    assert_a_bystander_is_unharmed(&scene, &network, |answered| {
        leaver.wait(async {
            let call = |_| {
                let mut client = RateLimitServiceClient::new(leaver.channel.clone());
                async move { client.should_rate_limit(request("edge", &[super::client("leaver")])).await }
            };
            let calls = futures_util::future::join_all((0..STREAMS).map(call));
            let answer = async {
                while network.answered() == answered {
                    tokio::task::yield_now().await;
                }
            };
            tokio::select! {
                biased;
                () = answer => {}
                _ = calls => {}
            }
            // Sent behind the cancellations.
            let mut health = HealthClient::new(leaver.channel.clone());
            let _ = health.check(HealthCheckRequest::default()).await;
        });
    });
}

#[test]
fn e4_floods_of_rst_stream_switch_off_nobodys_limit() {
    let redis = Redis::start(&[]);
    let network = Network::to(redis.port, Duration::from_millis(6));
    let scene = scene("resets", &network);
    let message = request("edge", &[client("leaver")]).encode_to_vec();
    let message = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes(), &message].concat();
    let streams: Vec<u8> = (0..STREAMS).map(|stream| 2 * stream + 1).collect();
    let call = |stream: &u8| {
        let headers = frame(HEADERS, WHOLE, *stream, &call_headers());
        [headers, frame(DATA, LAST, *stream, &message)].concat()
    };
    let calls: Vec<u8> = streams.iter().flat_map(call).collect();
    let resets: Vec<u8> = streams.iter().flat_map(|stream| frame(RST_STREAM, 0, *stream, &[0; 4])).collect();
    assert_a_bystander_is_unharmed(&scene, &network, |answered| {
        let mut stream = connect_from(ATTACKER, scene.0.listens("grpc")).unwrap();
        stream.write_all(&[HELLO, &calls].concat()).unwrap();
        eventually("an answer is on its way", || network.answered() > answered);
        // The server may close earlier, because of so many resets.
        let _ = stream.write_all(&resets);
    });
}
