use super::*;

fn run(package: &str, script: &str, server: &Server) -> Vec<String> {
    let script: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common").join(script);
    let mut python = Command::new(python_with(package).join("python"));
    let output = python.arg(script).arg(server.listens("grpc")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(Into::into).collect()
}

#[test]
fn python_calls_the_service_by_reflection() {
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
fn python_checks_the_health_of_the_server() {
    let (server, _envoy) = bare();
    let reported = run("grpcio-health-checking==1.85.1", "health.py", &server);
    assert_eq!(reported, ["SERVING", "SERVING", "SERVING", "SERVING", "NOT_FOUND", "SERVICE_UNKNOWN"]);
}

#[test]
fn both_versions_of_reflection_list_the_services() {
    let (_server, envoy) = bare();
    let mut reflection = ServerReflectionClient::new(envoy.channel.clone());
    let asked = ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let reported = envoy.wait(async {
        let mut answers =
            reflection.server_reflection_info(stream::iter([asked])).await.unwrap().into_inner();
        answers.message().await.unwrap().unwrap().message_response
    });
    let Some(MessageResponse::ListServicesResponse(list)) = reported else { panic!("{reported:?}") };
    let names: Vec<&str> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert!(names.contains(&SERVICE) && names.contains(&"grpc.health.v1.Health"), "{names:?}");
}
