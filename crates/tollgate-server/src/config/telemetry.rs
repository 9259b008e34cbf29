//! `[telemetry]`: where metrics and spans are exported to, over OTLP.
//!
//! The standard variables `OTEL_…` set what they set elsewhere. They take precedence over the file,
//! and the variables `TOLLGATE_TELEMETRY_…` over both.

use std::fmt;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use tollgate::{MINUTE, format_duration};

use super::ConfigError;
use super::reader::{At, Section};
use super::setting::{ParseError, Setting};
use super::source::Source;
use crate::secret::Secret;

/// The prefix of the standard variables.
pub(super) const STANDARD_PREFIX: &str = "OTEL_";

/// The share of requests that are sampled unless it is set.
const SAMPLE: f64 = 0.01;

/// The shortest interval between exports.
const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Where and how to export.
#[derive(Clone, Debug, PartialEq)]
pub struct Telemetry {
    /// The URL of the receiver, without the path of a signal.
    pub endpoint: String,
    /// Header fields of each export, which may hold a token.
    pub(crate) headers: Vec<(String, Secret)>,
    /// The share of requests with a span, among those whose caller has not decided.
    pub sample: f64,
    /// Whether spans have the client's name.
    pub client_names: bool,
    /// The interval between exports of the metrics.
    pub interval: Duration,
    /// The attributes of this process, beside its version and instance.
    pub(crate) resource: Vec<(String, String)>,
}

impl fmt::Display for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (endpoint, percent) = (&self.endpoint, self.sample * 100.0);
        let interval = format_duration(self.interval);
        write!(f, "Exports metrics every {interval}, and spans of {percent} % of requests, to {endpoint}.")
    }
}

/// An OTLP receiver, or `off`.
struct Receiver(Option<String>);

impl Setting for Receiver {
    const EXPECTED: &'static str = "a URL in quotes, such as \"http://127.0.0.1:4318\", or \"off\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let expected = || format!("write {}", Self::EXPECTED);
        if text == "off" {
            return Ok(Self(None));
        }
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        match rest.map(|rest| rest.split('/').next().unwrap_or_default()) {
            None | Some("") => Err(ParseError::new("this is not a URL over HTTP", expected())),
            Some(host) if host.contains('@') => {
                let help = "put credentials in the variable OTEL_EXPORTER_OTLP_HEADERS";
                Err(ParseError::new("a URL is logged, so it holds no credentials", help))
            }
            Some(_) => Ok(Self(Some(text.trim_end_matches('/').into()))),
        }
    }
}

/// Milliseconds, as the standard variables have them.
struct Millis(Duration);

impl Setting for Millis {
    const EXPECTED: &'static str = "milliseconds";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        u64::from_text(text).map(|millis| Self(Duration::from_millis(millis)))
    }
}

/// Reads the section. `None` exports nothing.
pub(super) fn read(source: &Source<'_>, mut section: Section<'_>) -> Option<Telemetry> {
    let standard = Standard(source);
    let endpoint = section.get::<Receiver>("otlp");
    let endpoint = preferred(endpoint, standard.get::<Receiver>("EXPORTER_OTLP_ENDPOINT"));
    let sample = preferred(section.get::<f64>("sample"), standard.sample());
    let interval = standard.get::<Millis>("METRIC_EXPORT_INTERVAL").map(|millis| millis.0);
    let interval = preferred(section.get::<Duration>("interval"), interval);
    let client_names = section.get_or("client_names", false);
    let sample = sample.unwrap_or(At { value: SAMPLE, span: None });
    if !(0.0..=1.0).contains(&sample.value) {
        let error = ConfigError::new("`sample` is a share from 0 to 1", "0.01 is one request in a hundred");
        section.report(error.at(sample.span.clone(), "here"));
    }
    let interval = interval.unwrap_or(At { value: MINUTE, span: None });
    if interval.value < INTERVAL_MIN {
        let error = ConfigError::new("`interval` is at least 100ms", "60s is usual");
        section.report(error.at(interval.span.clone(), "here"));
    }
    section.finish();
    let disabled = standard.get::<bool>("SDK_DISABLED") == Some(true);
    let endpoint = endpoint.and_then(|endpoint| endpoint.value.0).filter(|_| !disabled)?;
    standard.check_protocol();
    let headers = standard.pairs("EXPORTER_OTLP_HEADERS").into_iter();
    Some(Telemetry {
        endpoint,
        headers: headers.map(|(name, value)| (name, Secret::new(value))).collect(),
        sample: sample.value,
        client_names,
        interval: interval.value,
        resource: standard.resource(),
    })
}

/// A setting, unless it is only in the file and there is a standard variable.
fn preferred<T>(setting: Option<At<T>>, standard: Option<T>) -> Option<At<T>> {
    match (setting, standard) {
        (Some(At { span: Some(_), .. }) | None, Some(value)) => Some(At { value, span: None }),
        (setting, _) => setting,
    }
}

/// The standard variables.
struct Standard<'a>(&'a Source<'a>);

impl Standard<'_> {
    fn text(&self, name: &str) -> Option<&str> {
        // An empty variable counts as unset.
        let text = self.0.environment.get(&format!("{STANDARD_PREFIX}{name}"))?;
        Some(text.as_str()).filter(|text| !text.is_empty())
    }

    fn get<T: Setting>(&self, name: &str) -> Option<T> {
        let text = self.text(name)?;
        T::from_text(text).map_err(|error| self.invalid(name, error)).ok()
    }

    fn invalid(&self, name: &str, error: ParseError) {
        let text = self.text(name).unwrap_or_default();
        self.0.report(error.of_variable(&format!("{STANDARD_PREFIX}{name}"), text));
    }

    /// The share that `OTEL_TRACES_SAMPLER` and its argument say. A caller's own decision counts
    /// whether the sampler is called parent-based or not.
    fn sample(&self) -> Option<f64> {
        const SAMPLER: &str = "TRACES_SAMPLER";
        let sampler = self.text(SAMPLER)?;
        match sampler.strip_prefix("parentbased_").unwrap_or(sampler) {
            "always_on" => Some(1.0),
            "always_off" => Some(0.0),
            "traceidratio" => Some(self.get("TRACES_SAMPLER_ARG").unwrap_or(1.0)),
            _ => {
                let known = "write parentbased_traceidratio, always_on or always_off";
                self.invalid(SAMPLER, ParseError::new("this sampler is unknown", known));
                None
            }
        }
    }

    fn check_protocol(&self) {
        const PROTOCOL: &str = "EXPORTER_OTLP_PROTOCOL";
        if self.text(PROTOCOL).is_some_and(|protocol| protocol != "http/protobuf") {
            let help = "write http/protobuf, and the receiver's port for it, usually 4318";
            self.invalid(PROTOCOL, ParseError::new("only http/protobuf is spoken", help));
        }
    }

    fn resource(&self) -> Vec<(String, String)> {
        let mut resource = self.pairs("RESOURCE_ATTRIBUTES");
        let name = self.text("SERVICE_NAME").map(ToOwned::to_owned);
        let named = resource.iter().any(|(key, _)| key == "service.name");
        if let Some(name) = name.or_else(|| (!named).then(|| "tollgate".into())) {
            resource.retain(|(key, _)| key != "service.name");
            resource.push(("service.name".into(), name));
        }
        resource
    }

    /// `key=value,key=value`, with percent-encoded values.
    fn pairs(&self, name: &str) -> Vec<(String, String)> {
        let pair = |pair: &str| {
            let Some((key, value)) = pair.split_once('=') else {
                let error = ParseError::new(format!("{pair:?} has no ="), "write key=value,key=value");
                self.invalid(name, error);
                return None;
            };
            let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
            Some((key.trim().to_owned(), value))
        };
        let text = self.text(name).unwrap_or_default();
        text.split(',').filter(|text| !text.trim().is_empty()).filter_map(pair).collect()
    }
}
