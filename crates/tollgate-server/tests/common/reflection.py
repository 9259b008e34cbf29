"""A client that knows nothing of the service but what the server tells of itself."""

import sys

import grpc
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

channel = grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_http_proxy", 0)])
told = ProtoReflectionDescriptorDatabase(channel)
pool = descriptor_pool.DescriptorPool(told)


def call(service, method, fields):
    """Calls a method, and prints the answer as JSON in one line."""
    found = pool.FindServiceByName(service).FindMethodByName(method)
    request = message_factory.GetMessageClass(found.input_type)(**fields)
    answer = channel.unary_unary(
        f"/{service}/{method}",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=message_factory.GetMessageClass(found.output_type).FromString,
    )(request, wait_for_ready=True)
    print(json_format.MessageToJson(answer, indent=None))


print(*sorted(told.get_services()))
for _ in range(11):
    entries = [{"key": "client", "value": "python"}]
    call(
        "envoy.service.ratelimit.v3.RateLimitService",
        "ShouldRateLimit",
        {"domain": "edge", "descriptors": [{"entries": entries, "hits_addend": {"value": 1}}]},
    )
call("grpc.health.v1.Health", "Check", {"service": ""})
