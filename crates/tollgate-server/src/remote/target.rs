//! Which server to ask, and with which token: flags, the environment, a file.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use toml::de::{DeTable, DeValue};

use super::Remote;
use crate::secret::Secret;
use crate::token_file;

/// The address without any other.
const SERVER: &str = "http://127.0.0.1:8080";

/// How to give a token.
pub(super) const TOKEN_HELP: &str =
    "give it with --token-file FILE, in TOLLGATE_ADMIN_TOKEN, or as `token` in the file of --profile";

/// The settings of a profile.
const SETTINGS: [&str; 4] = ["server", "token", "token_file", "cacert"];

/// The server to ask.
#[derive(Debug, Args)]
pub(crate) struct Target {
    /// Server URL [default: $TOLLGATE_ADDRESS, the profile's, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL")]
    server: Option<String>,
    /// CA certificate (PEM) that verifies the server [default: the profile's, or the public CAs]
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
    /// File with the admin token [default: $TOLLGATE_ADMIN_TOKEN, the profile's, or the
    /// file of a running server on this machine]
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// File with server, token or token_file, and cacert, as TOML
    /// [default: ~/.config/tollgate/client.toml]
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
}

/// The contents of a profile. Paths are relative to its directory.
#[derive(Debug, Default)]
struct Profile {
    server: Option<String>,
    token: Option<String>,
    token_file: Option<PathBuf>,
    cacert: Option<PathBuf>,
}

impl Target {
    /// The server, for a request that needs no token.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(crate) fn remote(self) -> Result<Remote, String> {
        let (server, token, cacert) = self.resolved()?;
        Remote::new(&server, token, cacert.as_deref())
    }

    /// The server, for an administrator. Without a token, that of a running server on this machine
    /// is taken from its file, which is told on standard error.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(crate) fn administered(self) -> Result<Remote, String> {
        let (mut server, mut token, cacert) = self.resolved()?;
        if token.is_none()
            && let Some(found) = token_file::find(&server)?
        {
            let file = found.path.display();
            let _ = writeln!(io::stderr(), "tollgate: uses the token of the running server, in {file}");
            server = found.server;
            token = Some(found.token);
        }
        Remote::new(&server, token, cacert.as_deref())
    }

    /// The URL, the token and the CA certificate that were given.
    fn resolved(self) -> Result<(String, Option<Secret>, Option<PathBuf>), String> {
        let profile = self.read_profile()?;
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = self.server.or_else(|| variable("TOLLGATE_ADDRESS")).or(profile.server);
        let token = match self.token_file {
            Some(file) => Some(read_token(&file)?),
            None => match variable("TOLLGATE_ADMIN_TOKEN").or(profile.token) {
                Some(token) => Some(Secret::new(token.trim().to_owned())),
                None => profile.token_file.as_deref().map(read_token).transpose()?,
            },
        };
        let server = server.unwrap_or_else(|| SERVER.to_owned());
        Ok((server, token, self.cacert.or(profile.cacert)))
    }

    /// The profile. One that is not named may be absent.
    fn read_profile(&self) -> Result<Profile, String> {
        let usual = || {
            let home = |name, rest: &str| Some(PathBuf::from(std::env::var_os(name)?).join(rest));
            home("XDG_CONFIG_HOME", "tollgate/client.toml")
                .or_else(|| home("HOME", ".config/tollgate/client.toml"))
        };
        let Some(file) = self.profile.clone().or_else(usual) else { return Ok(Profile::default()) };
        match fs::read_to_string(&file) {
            Ok(text) => Profile::parse(&file, &text),
            Err(error) if self.profile.is_none() && error.kind() == io::ErrorKind::NotFound => {
                Ok(Profile::default())
            }
            Err(error) => Err(format!("cannot read {}: {error}; check --profile", file.display())),
        }
    }
}

impl Profile {
    fn parse(file: &Path, text: &str) -> Result<Self, String> {
        let name = file.display();
        let table =
            DeTable::parse(text).map_err(|error| format!("{name} is not TOML: {}", error.message()))?;
        let mut profile = Self::default();
        let path = |text: String| file.parent().unwrap_or(Path::new("")).join(text);
        for (key, value) in table.get_ref() {
            let DeValue::String(value) = value.get_ref() else {
                return Err(format!(
                    "{name}: `{}` is not a text in quotes; write it in quotes",
                    key.get_ref()
                ));
            };
            let value = value.to_string();
            match key.get_ref().as_ref() {
                "server" => profile.server = Some(value),
                "token" => profile.token = Some(value),
                "token_file" => profile.token_file = Some(path(value)),
                "cacert" => profile.cacert = Some(path(value)),
                other => {
                    let known = SETTINGS.join(", ");
                    return Err(format!("{name}: `{other}` is unknown; the settings are {known}"));
                }
            }
        }
        Ok(profile)
    }
}

fn read_token(file: &Path) -> Result<Secret, String> {
    let token = fs::read_to_string(file)
        .map_err(|error| format!("cannot read {}: {error}; {TOKEN_HELP}", file.display()))?;
    Ok(Secret::new(token.trim().to_owned()))
}
