//! Envoy charges what responses cost: the example as shipped, except for its ports.

use crate::common::{Server, eventually};
use crate::proxy::{Application, envoy, example, free_port};
use crate::rls::{Envoy, descriptor};

/// Envoy's recipe: ask with `hits_addend` 0 before the request, charge after the response. The last
/// response exceeds the budget, and its whole cost counts.
#[test]
fn c7_a_budget_used_up_by_the_cost_of_responses_refuses_the_next_request() {
    let application = Application::start();
    let port = free_port();
    let limits = example("envoy/tokens-limits.yaml", &[]);
    let tollgate = Server::everywhere(&["--envoy-config", limits.to_str().unwrap()]);
    let grpc = tollgate.listens("grpc").rsplit_once(':').unwrap().1.parse().unwrap();
    let file = example("envoy/tokens.yaml", &[(8000, port), (8081, grpc), (9000, application.port)]);
    let (proxy, service) = (envoy(&file, port), Envoy::of(&tollgate));
    let client = descriptor(&[("remote_address", "127.0.0.1")]);
    let left = || service.left("tokens", &client);
    for (tokens, after) in [(400, 600), (599, 1)] {
        assert_eq!(proxy.get("127.0.0.1", &format!("/?tokens={tokens}")).status, 200);
        eventually("the response is charged", || left() == Some(after));
    }
    assert_eq!(proxy.get("127.0.0.1", "/?tokens=500").status, 200, "one token is left");
    eventually("the response is charged", || left() == Some(0));
    application.seen();
    for _ in 0..3 {
        assert_eq!(proxy.get("127.0.0.1", "/?tokens=1").status, 429);
    }
    assert_eq!(application.seen(), [""; 0], "a refused request gets no further than the proxy");
    assert_eq!(proxy.get("127.0.0.2", "/?tokens=1").status, 200, "another client has its own budget");
}
