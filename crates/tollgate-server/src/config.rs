//! The configuration: a file, overridden by the environment, overridden by flags.
//!
//! A [`Config`] that exists is valid: limits and rules are built, certificates and tokens are read.
//! All errors are reported at once, as [`ConfigErrors`].

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate::{FailurePolicy, Limit, RuleSet};
use tollgate_http::{HeaderStyle, Headers, Identity};
use toml::de::DeTable;

use crate::backend::Backend;
use crate::envoy::Domains;
use crate::secret::Secret;
use crate::tls::{self, Tls};

mod error;
mod reader;
mod rules;
mod server;
mod store;
mod summary;
mod values;

pub(crate) use error::ConfigError;
pub use error::ConfigErrors;
pub(crate) use error::nearest;
use reader::{At, PREFIX, Section, Source};
pub(crate) use rules::Extent;
pub use server::{Addresses, Fixed, LogFormat};
pub(crate) use server::{OFF, WORKERS_MAX};
pub use store::Store;
use values::Delay;

/// Every setting, explained: the output of `tollgate init`.
pub const STARTER: &str = include_str!("../tollgate.toml");

/// The variable of the admin token, which overrides the token file.
const ADMIN_TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

/// The shortest admin token that cannot be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// The default delay after a wrong token: two guesses a second per connection.
const FAILED_AUTH_DELAY: Duration = Duration::from_millis(500);

/// Kubernetes sets `TOLLGATE_SERVICE_*` for a service called tollgate.
const KUBERNETES_PREFIX: &str = "SERVICE_";

/// The help for a YAML file passed as `--config`.
const YAML_HELP: &str =
    "the configuration is TOML; pass the YAML of Envoy's rate limit service with --envoy-config";

/// Variables that a user may expect to set a rule.
const RULE_VARIABLES: [&str; 3] = ["LIMIT", "RULE", "RULE_VARIABLES"];

/// A valid configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// Settings that need a restart.
    pub fixed: Fixed,
    /// Settings that a reload changes.
    pub settings: Settings,
    /// The rules, which a reload changes too.
    pub rules: RuleSet,
    /// Likely mistakes that are not errors.
    pub warnings: Vec<String>,
    /// The text of all its files.
    pub(crate) text: String,
    /// The extent of the file.
    pub(crate) extent: Extent,
}

/// Settings that a reload changes.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The rate limit header fields of responses.
    pub headers: Headers,
    /// Client identification.
    pub identity: Identity,
    /// The admin token; one is generated at the start if this is `None`.
    pub admin_token: Option<Secret>,
    /// The delay of the response to a wrong token.
    pub failed_auth_delay: Duration,
    /// Whether client names are hashed in logs.
    pub hash_keys_in_logs: bool,
    /// Whether gRPC descriptors may refund units.
    pub grpc_refunds: bool,
    /// TLS certificates.
    pub(crate) tls: Option<Tls>,
    /// The failure policy of rules that set none.
    pub on_store_error: FailurePolicy,
    /// The YAML of Envoy's rate limit service: a file or a directory.
    pub envoy_config: Option<PathBuf>,
    /// The domains defined there.
    pub(crate) domains: Arc<Domains>,
}

impl Config {
    /// The content that was lost since `extent` and `before`, if the file looks truncated.
    pub(crate) fn lost_since(&self, extent: Extent, before: &Settings) -> Option<String> {
        if self.extent < extent {
            let lost = if self.extent == Extent::Empty { "is empty" } else { "has no rules" };
            return Some(format!("the file {lost} any more; if that is intended, restart the server"));
        }
        let domain = self.settings.domains.emptied_since(&before.domains)?;
        Some(format!("the domain {domain:?} has no limit any more; if that is intended, remove its file"))
    }
}

/// Command-line flags, which override everything else.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// The HTTP listen address.
    pub http: Option<String>,
    /// The gRPC listen address.
    pub grpc: Option<String>,
    /// The listen address of the Redis protocol.
    pub resp: Option<String>,
    /// The limit per client, in place of rules.
    pub limit: Option<Limit>,
    /// The number of worker threads.
    pub workers: Option<usize>,
    /// The YAML of Envoy's rate limit service.
    pub envoy_config: Option<PathBuf>,
    /// The URL of Redis.
    pub redis: Option<String>,
    /// The data directory.
    pub data: Option<PathBuf>,
}

/// The sources of a configuration, kept for reloads.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The file, if there is one.
    pub file: Option<PathBuf>,
    /// The variables that begin with `TOLLGATE_`.
    pub environment: HashMap<String, String>,
    /// Command-line flags.
    pub flags: Flags,
}

impl Origin {
    /// The process's environment, with this file and these flags.
    pub(crate) fn of_process(file: Option<PathBuf>, flags: Flags) -> Self {
        let environment = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
            Some((name, value.into_string().ok()?))
        });
        Self { file, environment: environment.collect(), flags }
    }

    /// Reads and validates the configuration.
    ///
    /// # Errors
    /// All errors, with their positions in the file.
    pub fn load(&self) -> Result<Config, ConfigErrors> {
        let name =
            self.file.as_ref().map_or_else(|| "the environment".into(), |file| file.display().to_string());
        let failed = |text: String, errors, elsewhere| {
            Err(ConfigErrors { file: name.clone(), text, errors, elsewhere }.sorted())
        };
        let text = match self.file.as_ref().map(fs::read_to_string) {
            None => String::new(),
            Some(Ok(text)) => text,
            Some(Err(error)) => return failed(String::new(), vec![unreadable(&name, &error)], Vec::new()),
        };
        let source = Source {
            text: &text,
            environment: &self.environment,
            errors: Default::default(),
            elsewhere: Default::default(),
            read_variables: Default::default(),
        };
        let (table, errors) = DeTable::parse_recoverable(&text);
        let config = if errors.is_empty() {
            Some(self.read(&source, table.get_ref()))
        } else {
            let span = |error: &toml::de::Error| error.span().unwrap_or(0..0);
            let error = |error: &toml::de::Error| {
                ConfigError::new("this is not TOML", "").at(span(error), error.message())
            };
            let mut errors: Vec<ConfigError> = errors.iter().map(error).collect();
            if self.file.as_deref().is_some_and(is_yaml) {
                // One error is enough: the file was taken for TOML.
                errors.truncate(1);
                errors = errors.into_iter().map(|error| error.help(YAML_HELP)).collect();
            }
            source.errors.borrow_mut().extend(errors);
            None
        };
        let (errors, elsewhere) = (source.errors.take(), source.elsewhere.take());
        match config {
            Some(config) if errors.is_empty() && elsewhere.is_empty() => Ok(config),
            _ => failed(text.clone(), errors, elsewhere),
        }
    }

    /// The text of all files, to detect changes.
    pub(crate) fn text(&self, envoy_config: Option<&Path>) -> String {
        let file = self.file.as_ref().and_then(|file| fs::read_to_string(file).ok());
        file.unwrap_or_default() + &envoy_config.map(Domains::text).unwrap_or_default()
    }

    fn read(&self, source: &Source<'_>, table: &DeTable<'_>) -> Config {
        let mut root = Section::root(source, table);
        let mut server = root.section("server");
        let mut settings = self.settings(source, &mut server);
        settings.envoy_config = self.envoy_config(&mut server);
        let flags = store::Flags { redis: self.flags.redis.as_deref(), data: self.flags.data.as_deref() };
        let mut store = root.section("store");
        if let Some(policy) = store.choice("on_store_error", &POLICIES) {
            settings.on_store_error = policy.value;
        }
        let store = store::read(store, flags, self.directory());
        let fixed = server::fixed(source, server, &self.flags, store);
        // Errors of the store are reported; rules are then validated against memory.
        let backend = fixed.store.sample().unwrap_or_else(|_| Backend::Memory(Box::default()));
        // The text is read first, so a write during the load triggers another reload.
        let text = self.text(settings.envoy_config.as_deref());
        if let Some(path) = &settings.envoy_config {
            let read =
                Domains::read(path, &backend).map_err(|errors| source.elsewhere.borrow_mut().extend(errors));
            settings.domains = Arc::new(read.unwrap_or_default());
        }
        let context = rules::Context {
            store: &backend,
            settings: &fixed.store,
            domains: &settings.domains,
            policy: settings.on_store_error,
        };
        let rules = rules::read(source, &mut root, self.flags.limit, &context);
        root.finish();
        let mut warnings = self.misspelt(source);
        if settings.envoy_config.is_some() && fixed.addresses.grpc == OFF {
            warnings.push("gRPC is off, so the limits of envoy_config are unused".into());
        }
        Config { warnings, fixed, settings, rules, text, extent: Extent::of(table) }
    }

    fn settings(&self, source: &Source<'_>, server: &mut Section<'_>) -> Settings {
        let styles = [
            ("standard", HeaderStyle::Standard),
            ("trio", HeaderStyle::Trio),
            ("x", HeaderStyle::X),
            ("x-epoch", HeaderStyle::XEpoch),
            ("off", HeaderStyle::Off),
        ];
        let style = server.choice("headers", &styles).map_or(HeaderStyle::default(), |style| style.value);
        Settings {
            headers: Headers::new(style),
            identity: server::identity(server),
            admin_token: self.admin_token(source, server),
            failed_auth_delay: server.get_or("failed_auth_delay", Delay(FAILED_AUTH_DELAY)).0,
            hash_keys_in_logs: server.get_or("hash_keys_in_logs", false),
            grpc_refunds: server.get_or("grpc_refunds", false),
            tls: self.tls(server),
            on_store_error: FailurePolicy::default(),
            envoy_config: None,
            domains: Arc::default(),
        }
    }

    fn admin_token(&self, source: &Source<'_>, server: &mut Section<'_>) -> Option<Secret> {
        let file = server.get::<String>("admin_token_file");
        source.read_variables.borrow_mut().push(ADMIN_TOKEN.into());
        let (token, error) = if let Some(token) = self.environment.get(ADMIN_TOKEN) {
            (token.clone(), ConfigError::new(format!("{ADMIN_TOKEN} is too short"), ""))
        } else {
            let file = file?;
            let token = self.read_file(server, &file)?;
            (
                String::from_utf8(token).unwrap_or_default(),
                at_value(ConfigError::new("the admin token is too short", ""), &file),
            )
        };
        let token = token.trim();
        let graphic = token.bytes().all(|byte| byte.is_ascii_graphic());
        if token.len() < TOKEN_BYTES_MIN || !graphic {
            let help = format!(
                "write at least {TOKEN_BYTES_MIN} printable characters without spaces, for instance with `openssl rand -hex 32`"
            );
            source.report(error.help(help));
            return None;
        }
        Some(Secret::new(token.into()))
    }

    fn tls(&self, server: &mut Section<'_>) -> Option<Tls> {
        let mut section = server.section("tls");
        let (cert, key) = (section.get::<String>("cert"), section.get::<String>("key"));
        let client_ca = section.get::<String>("client_ca");
        let heading = server
            .span("tls")
            .filter(|_| section.is_bare())
            .map(|span| At { value: String::new(), span: Some(span) });
        let incomplete = match (&cert, &key, &client_ca) {
            (Some(cert), None, _) => Some((cert, "a certificate needs its key", "add `key`")),
            (None, Some(key), _) => Some((key, "a key needs its certificate", "add `cert`")),
            (None, None, Some(ca)) => Some((ca, "client certificates need TLS", "add `cert` and `key`")),
            (None, None, None) => {
                heading.as_ref().map(|at| (at, "TLS needs a certificate and its key", "add `cert` and `key`"))
            }
            _ => None,
        };
        if let Some((at, message, help)) = incomplete {
            section.report(at_value(ConfigError::new(message, help), at));
        }
        let built = cert.zip(key).and_then(|(cert, key)| {
            let certificate = self.read_file(&section, &cert);
            let private = self.read_file(&section, &key);
            let authorities = match &client_ca {
                Some(file) => Some(self.read_file(&section, file)?),
                None => None,
            };
            let built = tls::server_config(&certificate?, &private?, authorities.as_deref());
            built
                .map_err(|error| {
                    let at = match error.file {
                        tls::File::Certificate => &cert,
                        tls::File::Key => &key,
                        tls::File::ClientAuthority => client_ca.as_ref().unwrap_or(&cert),
                    };
                    section.report(at_value(ConfigError::new(error.reason, error.help), at));
                })
                .ok()
        });
        section.finish();
        built
    }

    /// The path of the rate limit service's YAML. A flag is relative to the working directory, a
    /// setting to the directory of its file.
    fn envoy_config(&self, server: &mut Section<'_>) -> Option<PathBuf> {
        let setting = server.get::<String>("envoy_config");
        self.flags.envoy_config.clone().or_else(|| Some(self.directory().join(setting?.value)))
    }

    /// The directory of the file, to which its paths are relative.
    fn directory(&self) -> &Path {
        self.file.as_deref().and_then(Path::parent).unwrap_or(Path::new(""))
    }

    /// The contents of a file that a setting names.
    fn read_file(&self, section: &Section<'_>, named: &At<String>) -> Option<Vec<u8>> {
        let path = self.directory().join(&named.value);
        fs::read(&path)
            .map_err(|error| section.report(at_value(unreadable(&path.display().to_string(), &error), named)))
            .ok()
    }

    /// Warnings about unread variables that resemble a setting's, or end like one. Other unread
    /// variables may belong to another program.
    fn misspelt(&self, source: &Source<'_>) -> Vec<String> {
        let asked = source.read_variables.borrow();
        let unread = self.environment.keys().filter(|name| !asked.contains(name));
        let near = |name: &String| {
            let stem = |name: &str| name.strip_prefix(PREFIX).unwrap_or_default().to_owned();
            let stems: Vec<String> = asked.iter().map(|name| stem(name)).collect();
            let written = stem(name);
            if written.starts_with(KUBERNETES_PREFIX) {
                return None;
            }
            if RULE_VARIABLES.contains(&written.as_str()) {
                return Some(format!(
                    "the variable {name} is not read: rules have no variables; use --limit, or a file"
                ));
            }
            let ending = format!("_{written}");
            let whole = stems.iter().map(String::as_str).find(|known| known.ends_with(&ending));
            let near = whole.or_else(|| nearest(&written, stems.iter().map(String::as_str)))?;
            Some(format!("the variable {name} is not read; did you mean {PREFIX}{near}?"))
        };
        unread.filter_map(near).collect()
    }
}

const POLICIES: [(&str, FailurePolicy); 3] =
    [("open", FailurePolicy::Open), ("closed", FailurePolicy::Closed), ("local", FailurePolicy::Local)];

/// The name of a failure policy.
pub(crate) fn policy_name(policy: FailurePolicy) -> &'static str {
    POLICIES.iter().find(|(_, known)| *known == policy).map_or("", |(name, _)| name)
}

/// Whether a file name ends in `.yaml` or `.yml`: the rate limit service's format.
pub(crate) fn is_yaml(file: &Path) -> bool {
    file.extension().is_some_and(|kind| kind == "yaml" || kind == "yml")
}

/// Positions an error at a value.
fn at_value<T>(error: ConfigError, value: &At<T>) -> ConfigError {
    match &value.span {
        Some(span) => error.at(span.clone(), "here"),
        None => error,
    }
}

fn unreadable(file: &str, error: &io::Error) -> ConfigError {
    ConfigError::new(format!("cannot read {file}: {error}"), "check its path and permissions")
}
