"""A receiver of OTLP over HTTP: prints its port, then each request as a line of JSON.

The messages are those of the package opentelemetry-proto, generated from OpenTelemetry's own files.
"""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer

from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

MESSAGES = {"/v1/traces": ExportTraceServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


def unknown_fields(message):
    """Whether the message, or one within it, has a field that the protocol does not know."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    nested = [
        item
        for field, value in message.ListFields()
        if field.message_type
        for item in ([value] if hasattr(value, "ListFields") else value)
    ]
    return len(UnknownFieldSet(message)) > 0 or any(map(unknown_fields, nested))


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        message = MESSAGES[self.path]()
        message.ParseFromString(body)
        request = {
            "path": self.path,
            "type": self.headers["content-type"],
            "key": self.headers["x-key"],
            "unknown": unknown_fields(message),
            "message": MessageToDict(message, preserving_proto_field_name=True),
        }
        print(json.dumps(request), flush=True)
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = HTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_port, flush=True)
server.serve_forever()
