//! Who may do what: bearer tokens and their scopes.

use std::{collections::BTreeSet, fmt, net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderValue,
        header::{AUTHORIZATION, HOST, WWW_AUTHENTICATE},
        uri::Authority,
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use super::problem::{Code, Problem};

/// What a token is good for.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scope {
    /// Enqueue requests and send messages.
    Produce,
    /// Take results off routes.
    Poll,
    /// Receive messages and settle them.
    Receive,
    /// All of it, and queues, topics and dead letters.
    Admin,
}

impl Scope {
    /// The word in the configuration and in errors.
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Produce => "produce",
            Self::Poll => "poll",
            Self::Receive => "receive",
            Self::Admin => "admin",
        }
    }
}

/// The tokens there are. None: everybody who reaches the server may do everything.
///
/// Only digests are kept. Comparing them takes a time that says nothing of a token: whoever does not know it
/// cannot choose how far the digest of a guess agrees with that of the token.
#[derive(Clone, Default)]
pub(crate) struct Access(Vec<([u8; 32], BTreeSet<Scope>)>);

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|(_, scopes)| scopes)).finish()
    }
}

impl Access {
    /// One more token; false when it is there already.
    pub(crate) fn add(&mut self, token: &str, scopes: &BTreeSet<Scope>) -> bool {
        let digest = digest(token.as_bytes());
        let is_new = self.0.iter().all(|(known, _)| *known != digest);
        if is_new {
            self.0.push((digest, scopes.clone()));
        }
        is_new
    }

    /// Whether no token is asked for.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_empty()
    }

    fn check(&self, headers: &HeaderMap, scope: Scope) -> Result<(), Problem> {
        if self.is_open() {
            return check_host(headers);
        }
        let token = bearer(headers).ok_or_else(|| {
            Problem::new(Code::Unauthenticated, "a bearer token must be given in the Authorization header")
        })?;
        let given = digest(token);
        let found = self.0.iter().find(|(known, _)| *known == given);
        let (_, scopes) =
            found.ok_or_else(|| Problem::new(Code::Unauthenticated, "the token is not known"))?;
        if scopes.contains(&scope) || scopes.contains(&Scope::Admin) {
            return Ok(());
        }
        let detail = format!("the token lacks the scope \"{}\"", scope.as_str());
        Err(Problem::new(Code::ScopeMissing, detail))
    }
}

fn digest(token: &[u8]) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

/// A page in a browser on this machine can have its own host's name resolve to 127.0.0.1, and would then be let in
/// as if it came from here. Its requests name its host.
fn check_host(headers: &HeaderMap) -> Result<(), Problem> {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    let authority = host.and_then(|host| host.parse::<Authority>().ok());
    let name = authority.as_ref().map(|authority| authority.host().trim_matches(['[', ']']));
    if name.is_some_and(|name| name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()) {
        return Ok(());
    }
    let detail = "without tokens, the server is called by \"localhost\" or an IP address";
    Err(Problem::new(Code::ForeignHost, detail))
}

/// What a group of operations asks of its callers.
#[derive(Clone)]
pub(super) struct Guard {
    pub(super) access: Arc<Access>,
    pub(super) scope: Scope,
}

/// Lets a request pass, or answers it.
pub(super) async fn require(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    match guard.access.check(request.headers(), guard.scope) {
        Ok(()) => next.run(request).await,
        Err(problem) => {
            let asks = problem.code() == Code::Unauthenticated;
            let mut response = problem.into_response();
            if asks {
                response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            response
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(name: axum::http::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    fn code(checked: Result<(), Problem>) -> Option<Code> {
        checked.err().map(|problem| problem.code())
    }

    #[test]
    fn a_token_is_good_for_its_scopes_and_admin_for_all() {
        let mut access = Access::default();
        assert!(access.add("p", &BTreeSet::from([Scope::Produce])));
        assert!(access.add("a", &BTreeSet::from([Scope::Admin])));
        assert!(!access.add("p", &BTreeSet::from([Scope::Admin])));
        let with =
            |authorization: &str, scope| code(access.check(&headers(AUTHORIZATION, authorization), scope));
        assert_eq!(with("Bearer p", Scope::Produce), None);
        assert_eq!(with("bearer  p", Scope::Produce), None);
        assert_eq!(with("Bearer p", Scope::Poll), Some(Code::ScopeMissing));
        assert_eq!(with("Bearer a", Scope::Receive), None);
        for unknown in ["Bearer q", "Bearer ", "Bearer", "p", "Basic p", "Bearer pp"] {
            assert_eq!(with(unknown, Scope::Produce), Some(Code::Unauthenticated), "{unknown}");
        }
        assert_eq!(code(access.check(&HeaderMap::new(), Scope::Poll)), Some(Code::Unauthenticated));
        assert!(!format!("{access:?}").contains("Produce\", \"p"));
    }

    #[test]
    fn where_nobody_is_asked_for_a_token_a_foreign_page_is_kept_out() {
        let open = |host: &str| code(Access::default().check(&headers(HOST, host), Scope::Admin));
        for ours in ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:80", "[::1]"] {
            assert_eq!(open(ours), None, "{ours}");
        }
        for foreign in ["evil.example", "evil.example:8080", "localhost.evil.example", ""] {
            assert_eq!(open(foreign), Some(Code::ForeignHost), "{foreign}");
        }
    }
}
