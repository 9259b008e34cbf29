//! The admin token and TLS certificates.

use super::error::ConfigError;
use super::origin::Origin;
use super::reader::{At, Section};
use super::source::Source;
use crate::secret::Secret;
use crate::tls::{self, Tls};

/// The variable of the admin token, which overrides the token file.
const ADMIN_TOKEN: &str = "TOLLGATE_ADMIN_TOKEN";

/// The shortest admin token that cannot be guessed.
const TOKEN_BYTES_MIN: usize = 16;

/// The admin token: a variable, or a file that a setting names.
pub(super) fn admin_token(origin: &Origin, source: &Source<'_>, server: &mut Section<'_>) -> Option<Secret> {
    let file = server.get::<String>("admin_token_file");
    source.read_variables.borrow_mut().push(ADMIN_TOKEN.into());
    let (token, error) = if let Some(token) = origin.environment.get(ADMIN_TOKEN) {
        (token.clone(), ConfigError::new(format!("{ADMIN_TOKEN} is too short"), ""))
    } else {
        let file = file?;
        let token = origin.read_file(server, &file)?;
        (
            String::from_utf8(token).unwrap_or_default(),
            ConfigError::new("the admin token is too short", "").at(file.span.clone(), "here"),
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

/// The TLS settings, with their certificates.
pub(super) fn tls(origin: &Origin, server: &mut Section<'_>) -> Option<Tls> {
    let mut section = server.section("tls");
    let (cert, key) = (section.get::<String>("cert"), section.get::<String>("key"));
    let client_ca = section.get::<String>("client_ca");
    let heading = server
        .span_of("tls")
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
        section.report(ConfigError::new(message, help).at(at.span.clone(), "here"));
    }
    let built = cert.zip(key).and_then(|(cert, key)| {
        let certificate = origin.read_file(&section, &cert);
        let private = origin.read_file(&section, &key);
        let authorities = match &client_ca {
            Some(file) => Some(origin.read_file(&section, file)?),
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
                section.report(ConfigError::new(error.reason, error.help).at(at.span.clone(), "here"));
            })
            .ok()
    });
    section.finish();
    built
}
