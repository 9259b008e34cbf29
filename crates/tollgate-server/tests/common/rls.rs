//! A client of the rate limit service, as Envoy is one.

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

/// A connection and its runtime.
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

    /// Runs a future to completion.
    pub(crate) fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.runtime.block_on(answer)
    }

    pub(crate) fn send(
        &self,
        request: impl tonic::IntoRequest<RateLimitRequest>,
    ) -> Result<RateLimitResponse, Status> {
        let mut client = RateLimitServiceClient::new(self.channel.clone());
        self.wait(client.should_rate_limit(request)).map(tonic::Response::into_inner)
    }

    /// Sends descriptors in a domain. Panics unless there is a status for each.
    #[track_caller]
    pub(crate) fn ask(&self, domain: &str, descriptors: &[RateLimitDescriptor]) -> RateLimitResponse {
        let answer = self.send(request(domain, descriptors)).unwrap();
        assert_eq!(answer.statuses.len(), descriptors.len(), "{answer:?}");
        let over = answer.statuses.iter().any(|status| status.code() == Code::OverLimit);
        let overall = if over { Code::OverLimit } else { Code::Ok };
        assert_eq!(answer.overall_code(), overall, "{answer:?}");
        answer
    }

    /// Sends one descriptor.
    #[track_caller]
    pub(crate) fn status(&self, domain: &str, descriptor: &RateLimitDescriptor) -> DescriptorStatus {
        self.ask(domain, std::slice::from_ref(descriptor)).statuses.remove(0)
    }

    /// The remaining units of a descriptor, if it is limited. Charges nothing.
    #[track_caller]
    pub(crate) fn left(&self, domain: &str, descriptor: &RateLimitDescriptor) -> Option<u32> {
        left(&self.status(domain, &hits(descriptor, 0)))
    }

    /// Whether one descriptor is admitted.
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

/// The descriptor with a cost.
pub(crate) fn hits(descriptor: &RateLimitDescriptor, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value }), ..descriptor.clone() }
}

/// The descriptor as a refund.
pub(crate) fn back(descriptor: &RateLimitDescriptor) -> RateLimitDescriptor {
    RateLimitDescriptor { is_negative_hits: true, ..descriptor.clone() }
}

/// The descriptor with an inline limit.
pub(crate) fn under(
    descriptor: &RateLimitDescriptor,
    requests_per_unit: u32,
    unit: RateLimitUnit,
) -> RateLimitDescriptor {
    let limit = RateLimitOverride { requests_per_unit, unit: unit.into() };
    RateLimitDescriptor { limit: Some(limit), ..descriptor.clone() }
}

/// The remaining units of a status, if it has a limit.
pub(crate) fn left(status: &DescriptorStatus) -> Option<u32> {
    status.current_limit.as_ref().map(|_| status.limit_remaining)
}

/// The limit of a status.
pub(crate) fn limit(status: &DescriptorStatus) -> Option<(u32, Unit, &str)> {
    let limit = status.current_limit.as_ref()?;
    Some((limit.requests_per_unit, limit.unit(), &limit.name))
}

/// All header fields of this name.
pub(crate) fn fields<'a>(answer: &'a RateLimitResponse, name: &str) -> Vec<&'a str> {
    let fields = answer.response_headers_to_add.iter().filter(|field| field.key == name);
    fields.map(|field| field.value.as_str()).collect()
}
