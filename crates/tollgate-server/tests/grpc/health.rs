use super::*;

fn request_for(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.into() }
}

#[test]
fn only_the_server_and_the_service_are_known() {
    let (_server, envoy) = bare();
    let mut health = HealthClient::new(envoy.channel.clone());
    for service in ["", SERVICE] {
        let answer = envoy.wait(health.check(request_for(service))).unwrap().into_inner();
        assert_eq!(answer.status(), ServingStatus::Serving);
        let mut reported = envoy.wait(health.watch(request_for(service))).unwrap().into_inner();
        let first = envoy.wait(reported.message()).unwrap().unwrap();
        assert_eq!(first.status(), ServingStatus::Serving);
    }
    let unknown = envoy.wait(health.check(request_for("another"))).unwrap_err();
    assert_eq!(unknown.code(), tonic::Code::NotFound);
    let mut reported = envoy.wait(health.watch(request_for("another"))).unwrap().into_inner();
    let first = envoy.wait(reported.message()).unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::ServiceUnknown);
}

#[test]
fn a_stopping_server_is_not_serving_and_still_answers() {
    let (mut server, envoy) = server("stopping", "[server]\nstop_delay = \"10m\"");
    let mut health = HealthClient::new(envoy.channel.clone());
    let mut reported = envoy.wait(health.watch(request_for(""))).unwrap().into_inner();
    let mut next = || envoy.wait(reported.message()).unwrap().map(|answer| answer.status());
    assert_eq!(next(), Some(ServingStatus::Serving));
    server.signal("TERM");
    let mut status = || envoy.wait(health.check(request_for(SERVICE))).unwrap().into_inner().status();
    eventually("it says so", || status() == ServingStatus::NotServing);
    assert_eq!(next(), Some(ServingStatus::NotServing), "watchers are notified");
    assert!(envoy.allows("edge", &client("a")));
    assert_eq!(next(), None, "there is nothing more to watch");
    server.signal("TERM");
    drop((reported, health, envoy));
    assert_eq!(server.exit_code(), Some(0));
}
