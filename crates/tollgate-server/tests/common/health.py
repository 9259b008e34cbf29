"""The health of a server, as gRPC's own package for Python asks for it."""

import sys

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)])
health = health_pb2_grpc.HealthStub(channel)
for service in ["", "envoy.service.ratelimit.v3.RateLimitService", "another"]:
    request = health_pb2.HealthCheckRequest(service=service)
    try:
        answer = health.Check(request, wait_for_ready=True)
        print(health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status))
    except grpc.RpcError as error:
        print(error.code().name)
    first = next(iter(health.Watch(request, wait_for_ready=True)))
    print(health_pb2.HealthCheckResponse.ServingStatus.Name(first.status))
