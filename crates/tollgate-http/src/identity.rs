//! The identity of a request's client.
//!
//! By default that is the peer's address, and no header is trusted. Every other source is chosen
//! here. A request without an identity is counted too: all of them share one budget, under a name
//! that no header can spell.

use std::borrow::Cow;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::{AUTHORIZATION, HeaderName};
use sha2::{Digest as _, Sha256};
use tollgate::{KeyPart as _, MAX_VALUE_BYTES, Paths};

use crate::Head;
use address::ClientAddress;

mod address;
mod forwarded;

pub use address::{ForwardedBy, Proxies};

/// The client of requests without an identity. Not ASCII, so no header can spell it.
pub const UNIDENTIFIED: &str = "›unidentified";

/// The first character of a marked name. Not ASCII, so no header can spell it. The name from an
/// alternative source is marked, so that a client cannot spell it in the first source. A name that
/// begins with this character by itself is marked too, so that no two names are equal.
const MARK: char = '›';

/// The source of a client's identity.
///
/// ```
/// use tollgate_http::{Identity, Proxies};
///
/// // Behind a load balancer, signed-in users by a header that it sets, everyone else by address.
/// let proxies = Proxies::networks(["10.0.0.0/8".parse()?]);
/// let identity = Identity::header("x-user-id".parse()?).or(Identity::peer().behind(proxies));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Identity(Source);

#[derive(Clone)]
enum Source {
    Address(ClientAddress),
    Header(HeaderName),
    Bearer,
    Path,
    Method,
    Function(Arc<Function>),
    Both(Box<(Self, Self)>),
    Either(Box<(Self, Self)>),
}

type Function = dyn Fn(Head<'_>) -> Option<String> + Send + Sync;

impl Default for Identity {
    fn default() -> Self {
        Self::peer()
    }
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

impl Identity {
    /// The address of the peer; of an IPv6 address its /64.
    #[must_use]
    pub fn peer() -> Self {
        Self(Source::Address(ClientAddress::default()))
    }

    /// The address that these proxies forward for. Only for [`Identity::peer`].
    #[must_use]
    pub fn behind(mut self, proxies: Proxies) -> Self {
        if let Source::Address(address) = &mut self.0 {
            address.proxies = proxies;
        }
        self
    }

    /// The length of the IPv6 prefix that identifies a client: 64 by default, which is what one
    /// customer gets. Only for [`Identity::peer`].
    #[must_use]
    pub fn ipv6_prefix(mut self, bits: u8) -> Self {
        if let Source::Address(address) = &mut self.0 {
            address.ipv6_prefix = bits.min(128);
        }
        self
    }

    /// The value of a header. Clients write headers: choose one that a proxy or an earlier layer
    /// sets or checks, such as an API key. A header that is sent twice counts as not sent.
    #[must_use]
    pub const fn header(name: HeaderName) -> Self {
        Self(Source::Header(name))
    }

    /// The bearer token, as the first half of its SHA-256: the token itself is neither stored nor
    /// logged. It only distinguishes clients; the service must verify it.
    #[must_use]
    pub const fn bearer() -> Self {
        Self(Source::Bearer)
    }

    /// The path, [normalised](tollgate::Paths::normalize): its spellings are one identity.
    #[must_use]
    pub const fn path() -> Self {
        Self(Source::Path)
    }

    /// The method.
    #[must_use]
    pub const fn method() -> Self {
        Self(Source::Method)
    }

    /// A name from a request extension of type `T` that an earlier layer inserted. An authenticated
    /// user is the best identity.
    #[must_use]
    pub fn extension<T: Send + Sync + 'static>(name: impl Fn(&T) -> String + Send + Sync + 'static) -> Self {
        Self::function(move |head| head.extensions.get::<T>().map(&name))
    }

    /// The name that a function returns.
    #[must_use]
    pub fn function(identify: impl Fn(Head<'_>) -> Option<String> + Send + Sync + 'static) -> Self {
        Self(Source::Function(Arc::new(identify)))
    }

    /// The pair of two identities, if the request has both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self(Source::Both(Box::new((self.0, other.0))))
    }

    /// This identity, or `other` for a request without it. A name from the second never equals a
    /// name from the first.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self(Source::Either(Box::new((self.0, other.0))))
    }

    /// The name of a peer by its address alone, for a bound on connections. `None` for a trusted
    /// proxy, which connects for others. Only for [`Identity::peer`].
    #[must_use]
    pub fn bounded_peer(&self, peer: IpAddr) -> Option<String> {
        match &self.0 {
            Source::Address(address) => address.bounded_peer(peer.to_canonical()),
            _ => None,
        }
    }

    /// The name of a request's client, or `None` if the request does not have this identity.
    #[must_use]
    pub fn identify<'a>(&self, head: Head<'a>) -> Option<Cow<'a, str>> {
        self.0.identify(head)
    }

    /// Calls `f` with the name of a request's client, which need not be allocated for that. `None`
    /// if the request does not have this identity.
    pub(crate) fn with_name<R>(&self, head: &Head<'_>, f: impl FnOnce(&str) -> R) -> Option<R> {
        match &self.0 {
            Source::Address(address) => address.with_name(head, f),
            source => source.identify(*head).map(|name| f(&name)),
        }
    }
}

impl Source {
    fn identify<'a>(&self, head: Head<'a>) -> Option<Cow<'a, str>> {
        self.name(head).filter(|client| (1..=MAX_VALUE_BYTES).contains(&client.len()))
    }

    fn name<'a>(&self, head: Head<'a>) -> Option<Cow<'a, str>> {
        match self {
            Self::Address(address) => address.with_name(&head, str::to_owned).map(Cow::Owned),
            Self::Header(name) => only_value(head, name).map(Cow::Borrowed),
            Self::Bearer => bearer(head).map(Cow::Owned),
            Self::Path => Some(Paths::Normalized.normalize(head.uri.path())),
            Self::Method => Some(Cow::Borrowed(head.method.as_str())),
            Self::Function(function) => function(head).map(|name| marked_as_itself(Cow::Owned(name))),
            Self::Both(both) => {
                let (one, other) = (both.0.identify(head)?, both.1.identify(head)?);
                Some(Cow::Owned((&*one, &*other).with_text(str::to_owned)))
            }
            Self::Either(either) => match either.0.identify(head) {
                Some(name) => Some(marked_as_itself(name)),
                None => either.1.identify(head).map(|instead| Cow::Owned(format!("{MARK}or:{instead}"))),
            },
        }
    }
}

/// Marks a name that begins with [`MARK`] by itself, so that it differs from every marked name.
fn marked_as_itself(name: Cow<'_, str>) -> Cow<'_, str> {
    if name.starts_with(MARK) { Cow::Owned(format!("{MARK}is:{name}")) } else { name }
}

/// The value of a header that is sent once and is not empty.
fn only_value<'a>(head: Head<'a>, name: &HeaderName) -> Option<&'a str> {
    let mut values = head.headers.get_all(name).iter();
    let only = values.next()?.to_str().ok()?.trim();
    (values.next().is_none() && !only.is_empty()).then_some(only)
}

fn bearer(head: Head<'_>) -> Option<String> {
    let (scheme, token) = only_value(head, &AUTHORIZATION)?.split_once(' ')?;
    let token = token.trim();
    if !scheme.eq_ignore_ascii_case("bearer") || token.is_empty() {
        return None;
    }
    let hash = Sha256::digest(token);
    Some(hash.iter().take(16).fold("bearer:".to_owned(), |text, byte| text + &format!("{byte:02x}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerAddr;
    use http::Request;

    fn request(headers: &[(&str, &str)]) -> Request<()> {
        let mut request = Request::builder().uri("/some/path?query");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.extension(PeerAddr("203.0.113.7:5555".parse().unwrap())).body(()).unwrap()
    }

    fn identified(identity: &Identity, headers: &[(&str, &str)]) -> Option<String> {
        identity.identify(Head::from(&request(headers))).map(Cow::into_owned)
    }

    #[test]
    fn f3_a_header_identifies_if_it_is_there_once_and_says_something() {
        let identity = Identity::header(HeaderName::from_static("x-api-key"));
        assert_eq!(identified(&identity, &[("x-api-key", " alice ")]).as_deref(), Some("alice"));
        assert_eq!(identified(&identity, &[]), None);
        assert_eq!(identified(&identity, &[("x-api-key", " ")]), None);
        assert_eq!(identified(&identity, &[("x-api-key", "a"), ("x-api-key", "b")]), None);
        assert_eq!(identified(&identity, &[("x-api-key", &"k".repeat(1_025))]), None);
    }

    #[test]
    fn f3_a_bearer_token_is_hashed() {
        let identified = |value| identified(&Identity::bearer(), &[("authorization", value)]);
        // The first half of the SHA-256 of "secret".
        assert_eq!(identified("Bearer secret").unwrap(), "bearer:2bb80d537b1da3e38bd30361aa855686");
        assert_eq!(identified("bEARER  secret"), identified("Bearer secret"));
        assert_ne!(identified("Bearer Secret"), identified("Bearer secret"));
        assert_eq!(
            [identified("Basic secret"), identified("Bearer"), identified("Bearer ")],
            [None, None, None]
        );
    }

    #[test]
    fn f3_what_stands_in_for_a_header_cannot_be_spelled_by_one() {
        let identity = Identity::header(HeaderName::from_static("x-user")).or(Identity::peer());
        let victim = identified(&identity, &[]).unwrap();
        assert_eq!(victim, "›or:203.0.113.7");
        for attempt in ["203.0.113.7", "or:203.0.113.7", "›or:203.0.113.7", "\\203.0.113.7"] {
            let mut request = request(&[("x-user", attempt)]);
            request.extensions_mut().insert(PeerAddr("198.51.100.1:1".parse().unwrap()));
            assert_ne!(identity.identify(Head::from(&request)).unwrap(), victim, "{attempt}");
        }
    }

    #[test]
    fn f3_of_three_alternatives_none_can_pass_for_another() {
        let name = HeaderName::from_static;
        let by_name =
            || Identity::function(|head| Some(head.headers.get("x-name")?.to_str().ok()?.replace('>', "›")));
        for identity in [
            by_name().or(Identity::header(name("x-key"))).or(Identity::peer()),
            by_name().or(Identity::header(name("x-key")).or(Identity::peer())),
        ] {
            let by_address = identified(&identity, &[]).unwrap();
            let mut seen = std::collections::HashSet::from([by_address, UNIDENTIFIED.to_owned()]);
            for spelled in [
                "203.0.113.7",
                "unidentified",
                "or:203.0.113.7",
                ">203.0.113.7",
                ">or:203.0.113.7",
                ">or:>or:203.0.113.7",
                ">is:>or:203.0.113.7",
                ">unidentified",
            ] {
                for header in ["x-name", "x-key"] {
                    let known = identified(&identity, &[(header, spelled)]).unwrap();
                    assert!(seen.insert(known.clone()), "{header}: {spelled} is {known} too");
                }
            }
        }
    }

    #[test]
    fn f3_a_name_that_is_too_long_gives_way_to_the_next() {
        let identity = Identity::header(HeaderName::from_static("x-user")).or(Identity::peer());
        let long = "x".repeat(2_000);
        assert_eq!(identified(&identity, &[("x-user", &long)]).unwrap(), "›or:203.0.113.7");
    }

    #[test]
    fn f3_two_together_are_told_apart_however_they_are_cut() {
        let name = HeaderName::from_static;
        let identity = Identity::header(name("a")).and(Identity::header(name("b")));
        assert_ne!(
            identified(&identity, &[("a", "x:y"), ("b", "z")]),
            identified(&identity, &[("a", "x"), ("b", "y:z")])
        );
        assert_eq!(identified(&identity, &[("a", "x")]), None);
        let route = Identity::method().and(Identity::path());
        assert_eq!(identified(&route, &[]).unwrap(), "GET:/some/path");
    }

    #[test]
    fn f3_an_authenticated_user_comes_from_the_extensions() {
        #[derive(Clone)]
        struct User(u32);
        let identity = Identity::extension(|user: &User| user.0.to_string());
        let mut request = request(&[]);
        assert_eq!(identity.identify(Head::from(&request)), None);
        request.extensions_mut().insert(User(42));
        assert_eq!(identity.identify(Head::from(&request)).unwrap(), "42");
    }
}
