//! Envoy's part: asks the rate limit service over gRPC.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::UInt64Value;
use tokio::runtime::{self, Runtime};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

use super::common::Server;

/// One connection, and a thread to wait for its answers.
pub(crate) struct Envoy {
    runtime: Runtime,
    pub(crate) channel: Channel,
}

impl Envoy {
    pub(crate) fn of(server: &Server) -> Self {
        Self::connect(Endpoint::from_shared(format!("http://{}", server.listens("grpc"))).unwrap()).unwrap()
    }

    pub(crate) fn connect(endpoint: Endpoint) -> Result<Self, tonic::transport::Error> {
        let runtime = runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let channel = runtime.block_on(endpoint.connect())?;
        Ok(Self { runtime, channel })
    }

    /// Waits for whatever is asked.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    pub(crate) fn send(&self, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.wait(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// Asks in a domain. Fails if there is no answer, or not a status for each descriptor.
    #[track_caller]
    pub(crate) fn ask(&self, domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        let answer = self.send(request(domain, descriptors)).unwrap();
        assert_eq!(answer.statuses.len(), descriptors.len(), "{answer:?}");
        let over = answer.statuses.iter().any(|status| status.code() == Code::OverLimit);
        let overall = if over { Code::OverLimit } else { Code::Ok };
        assert_eq!(answer.overall_code(), overall, "{answer:?}");
        answer
    }

    /// Asks about one descriptor.
    #[track_caller]
    pub(crate) fn status(&self, domain: &str, descriptor: &RateLimitDescriptor) -> DescriptorStatus {
        self.ask(domain, std::slice::from_ref(descriptor)).statuses.remove(0)
    }

    /// How much a descriptor has left, if anything limits it. Takes nothing.
    #[track_caller]
    pub(crate) fn left(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Option<u32> {
        left(&self.status(domain, &hits(descriptor, 0)))
    }

    /// Whether one descriptor may go ahead.
    #[track_caller]
    pub(crate) fn allows(&self, domain: &str, descriptor: &RateLimitDescriptor) -> bool {
        self.status(domain, descriptor).code() == Code::Ok
    }
}

pub(crate) fn request(domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitRequest {
    RateLimitRequest { domain: domain.into(), descriptors: descriptors.to_vec(), hits_addend: 0 }
}

pub(crate) fn descriptor(entries: &[(&str, &str)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&str, &str)| Entry { key: (*key).into(), value: (*value).into() };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

/// The same descriptor with a cost of its own.
pub(crate) fn hits(descriptor: &RateLimitDescriptor, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value }), ..descriptor.clone() }
}

/// The same descriptor, giving back instead of taking.
pub(crate) fn back(descriptor: &RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor.clone() }
}

/// The same descriptor with a limit of its own.
pub(crate) fn under(
    descriptor: &RateLimitDescriptor,
    requests_per_unit: u32,
    unit: RateLimitUnit,
) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: unit.into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor.clone() }
}

/// What a status says is left, if it tells of a limit.
pub(crate) fn left(status: &DescriptorStatus) -> Option<u32> {
    status.current_limit.as_ref().map(|_| status.limit_remaining)
}

/// The limit that a status tells of.
pub(crate) fn limit(status: &DescriptorStatus) -> Option<(u32, Unit, &str)> {
    let limit = status.current_limit.as_ref()?;
    Some((limit.requests_per_unit, limit.unit(), &limit.name))
}

/// All header fields of this name.
pub(crate) fn fields<'a>(answer: &'a RateLimitResponse, name: &str) -> Vec<&'a str> {
    let fields = answer.response_headers_to_add.iter().filter(|field| field.key == name);
    fields.map(|field| field.value.as_str()).collect()
}
