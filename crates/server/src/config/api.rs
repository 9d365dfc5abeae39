//! `[api]`: where the HTTP API listens, and who may do what through it.

use std::{collections::BTreeSet, fmt, net::SocketAddr, time::Duration};

use serde::Deserialize;

use super::{address, from_environment};
use crate::{
    api::{Access, Options, Scope},
    exit::Refused,
};

/// `[api]`.
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ApiSection {
    /// Where the API is. Default empty: nowhere.
    #[serde(deserialize_with = "address")]
    listen: Option<SocketAddr>,
    /// Who may use it. None: everybody who reaches it, which must be this machine only.
    tokens: Vec<TokenSetting>,
    /// The largest body of a call. Default 16 MiB.
    max_body_bytes: usize,
    /// How long the head of a call may take to arrive, and its body after that. Default 60 s.
    #[serde(with = "leasehold_dispatch::duration::positive")]
    read_timeout: Duration,
}

impl Default for ApiSection {
    fn default() -> Self {
        let Options { max_body_bytes, read_timeout, .. } = Options::default();
        Self { listen: None, tokens: Vec::new(), max_body_bytes, read_timeout }
    }
}

/// A token, and what it is good for.
#[derive(Clone, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct TokenSetting {
    /// The token itself, or `env:NAME` for the content of that variable.
    token: String,
    scopes: BTreeSet<Scope>,
}

impl fmt::Debug for TokenSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenSetting").field("token", &"redacted").field("scopes", &self.scopes).finish()
    }
}

impl ApiSection {
    /// What the server is told; none when it is off.
    ///
    /// # Errors
    /// When a token cannot be used, or nothing guards an address that other machines can reach.
    pub(crate) fn options(&self) -> Result<Option<Options>, Refused> {
        let mut access = Access::default();
        for (n, setting) in self.tokens.iter().enumerate() {
            let name = format!("[api] tokens[{n}]");
            let token = from_environment(&format!("{name} token"), &setting.token)?;
            if token.is_empty() || !token.bytes().all(|byte| byte.is_ascii_graphic()) {
                return Err(Refused(format!(
                    "{name} token: it must have one or more characters, ASCII and without spaces"
                )));
            }
            if setting.scopes.is_empty() {
                return Err(Refused(format!("{name} scopes: at least one must be given")));
            }
            if !access.add(&token, &setting.scopes) {
                return Err(Refused(format!("{name} token: it is given twice")));
            }
        }
        let Some(listen) = self.listen else { return Ok(None) };
        if access.is_open() && !listen.ip().is_loopback() {
            return Err(Refused(format!(
                "[api] listen: {listen} can be reached from other machines, and without tokens everybody there \
                 could do everything: give [api] tokens, or listen on 127.0.0.1"
            )));
        }
        let (max_body_bytes, read_timeout) = (self.max_body_bytes, self.read_timeout);
        Ok(Some(Options { listen, access, max_body_bytes, read_timeout }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(text: &str) -> Result<Option<Options>, String> {
        let section: ApiSection = toml::from_str(text).map_err(|error| error.to_string())?;
        section.options().map_err(|error| error.to_string())
    }

    #[test]
    fn it_is_off_unless_it_has_an_address() {
        assert!(options("").unwrap().is_none());
        assert!(options("listen = \"\"").unwrap().is_none());
        let on = options("listen = \"127.0.0.1:0\"").unwrap().unwrap();
        assert!(on.access.is_open());
        assert_eq!(on.max_body_bytes, 16 * 1024 * 1024);
    }

    #[test]
    fn without_a_token_only_this_machine_is_listened_to() {
        for open in ["0.0.0.0:80", "[::]:80", "10.0.0.1:80", "[2001:db8::1]:80"] {
            let message = options(&format!("listen = \"{open}\"")).unwrap_err();
            assert!(message.contains(open) && message.contains("tokens"), "{message}");
            let guarded = format!("listen = \"{open}\"\ntokens = [{{ token = \"t\", scopes = [\"poll\"] }}]");
            assert!(!options(&guarded).unwrap().unwrap().access.is_open());
        }
        assert!(options("listen = \"[::1]:80\"").unwrap().is_some());
    }

    #[test]
    fn tokens_that_cannot_be_used_are_refused_by_their_place_and_never_shown() {
        for (token, scopes, named) in [
            ("", "[\"poll\"]", "tokens[1] token"),
            ("hunter2 ", "[\"poll\"]", "tokens[1] token"),
            ("hunter2\u{e9}", "[\"poll\"]", "tokens[1] token"),
            ("hunter2", "[]", "tokens[1] scopes"),
            ("first", "[\"admin\"]", "tokens[1] token: it is given twice"),
            ("env:LEASEHOLD_TEST_MISSING", "[\"poll\"]", "LEASEHOLD_TEST_MISSING"),
        ] {
            let message = options(&format!(
                "tokens = [{{ token = \"first\", scopes = [\"poll\"] }}, {{ token = \"{token}\", scopes = {scopes} }}]"
            ))
            .unwrap_err();
            assert!(message.contains(named) && !message.contains("hunter2"), "{message}");
        }
        let message = options("tokens = [{ token = \"t\", scopes = [\"everything\"] }]").unwrap_err();
        assert!(message.contains("unknown variant `everything`"), "{message}");
    }
}
