//! `--listen`: the protocol over streamable HTTP on this host alone, for clients that have the token.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{anyhow, Context as _};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, WWW_AUTHENTICATE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::session::{SessionId, SessionManager as _};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use super::server::Server;
use super::MAX_REQUEST;
use crate::host::open;

/// Where the protocol is served.
const PATH: &str = "/mcp";
/// The variable that has the token if no file does.
const VARIABLE: &str = "SCXPROF_MCP_TOKEN";
/// Bytes of a token: fewer are guessed, more are a mistake.
const TOKEN: std::ops::RangeInclusive<usize> = 16..=4096;
/// Connections at a time, and sessions; others are refused.
const MAX_CONNECTIONS: usize = 64;
const MAX_SESSIONS: usize = 16;
/// How long a client may take for the head of a request.
const HEAD: Duration = Duration::from_secs(10);
/// A session without a request for this long may end for a new one: a client that went away without a word does not say so.
const QUIET: Duration = Duration::from_secs(2 * 60);
/// A session without a request for this long ends: its client may wait for a person.
const IDLE: Duration = Duration::from_secs(30 * 60);
/// Where pages of a browser may be from.
const ORIGINS: [&str; 6] = [
    "http://localhost:*",
    "http://127.0.0.1:*",
    "http://[::1]:*",
    "https://localhost:*",
    "https://127.0.0.1:*",
    "https://[::1]:*",
];

type Answer = Response<BoxBody<Bytes, Infallible>>;

/// The token that a client must send. The token itself is not kept.
#[derive(Debug, Clone)]
pub(super) struct Token([u8; 32]);

impl Token {
    /// The token of a file, or of the environment.
    ///
    /// # Errors
    /// There is none, it is too short, or any user can read its file.
    pub(super) fn read(file: Option<&Path>) -> anyhow::Result<Self> {
        let token = match file {
            Some(path) => {
                let mut token = Vec::new();
                let file = open::regular(path).with_context(|| format!("--token-file {}", path.display()))?;
                let mode = file.metadata()?.permissions().mode();
                anyhow::ensure!(
                    mode & 0o004 == 0,
                    "--token-file {}: any user can read it, and with it use this server: chmod 600",
                    path.display()
                );
                file.take(*TOKEN.end() as u64 + 2).read_to_end(&mut token)?;
                token
            }
            None => match std::env::var_os(VARIABLE) {
                Some(token) => token.into_encoded_bytes(),
                None => {
                    return Err(anyhow!(
                        "--listen needs a token that clients send: --token-file FILE, or {VARIABLE} in the environment \
                         (`openssl rand -hex 32 > FILE` makes one)"
                    ));
                }
            },
        };
        let token = token.trim_ascii();
        if !TOKEN.contains(&token.len()) || !token.iter().all(u8::is_ascii_graphic) {
            return Err(anyhow!(
                "the token must have {} to {} printable ASCII characters without spaces",
                TOKEN.start(),
                TOKEN.end()
            ));
        }
        Ok(Self(Sha256::digest(token).into()))
    }

    /// True for the value of an Authorization header with this token (RFC 6750). It takes as long for each value of a length.
    fn is_given(&self, header: &[u8]) -> bool {
        let (scheme, token) = header.split_at_checked(7).unwrap_or_default();
        let digest: [u8; 32] = Sha256::digest(token.trim_ascii()).into();
        // Of digests, so that a difference says nothing of the token; the loop does not end early.
        let differs = self.0.iter().zip(digest).fold(0, |differs, (a, b)| differs | (a ^ b));
        scheme.eq_ignore_ascii_case(b"bearer ") && std::hint::black_box(differs) == 0
    }
}

/// Listens on an address of this host.
///
/// # Errors
/// It is neither 127.0.0.1 nor ::1, or it is taken.
pub(super) async fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    // Requests name the host that they are for, which is compared with these.
    if ![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)].contains(&address.ip()) {
        return Err(anyhow!(
            "--listen {address}: other hosts could reach it, or it is not known to clients; only 127.0.0.1 and ::1 are served. For another host, forward the \
             port: ssh -L"
        ));
    }
    TcpListener::bind(address).await.with_context(|| format!("--listen {address}"))
}

/// Serves clients until the process ends.
pub(super) async fn serve(
    listener: TcpListener,
    token: Token,
    make: impl Fn() -> Server + Send + Sync + 'static,
) -> anyhow::Result<()> {
    let config =
        StreamableHttpServerConfig::default().with_allowed_origins(ORIGINS).with_max_request_body_bytes(MAX_REQUEST);
    let mut sessions = LocalSessionManager::default();
    sessions.session_config.keep_alive = Some(IDLE);
    let sessions = Arc::new(sessions);
    let service = StreamableHttpService::new(move || Ok(make()), Arc::clone(&sessions), config);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let sessions = Arc::new(Sessions { manager: sessions, asked: Mutex::default(), begun: AtomicUsize::new(0) });
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            // Out of descriptors, for example: it may pass.
            Err(error) => {
                say!("note: a connection was not accepted: {error}");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let Ok(connection) = Arc::clone(&connections).try_acquire_owned() else { continue };
        let (service, sessions, token) = (service.clone(), Arc::clone(&sessions), token.clone());
        tokio::spawn(async move {
            let _connection = connection;
            let answer = service_fn(move |request: Request<Incoming>| {
                let (service, sessions, token) = (service.clone(), Arc::clone(&sessions), token.clone());
                async move {
                    Ok::<Answer, Infallible>(match refuse(&request, &token) {
                        Some(refused) => refused,
                        None => match sessions.enter(session_of(&request), request.method(), Instant::now()).await {
                            Some(_begun) => service.handle(request).await,
                            None => plain(
                                StatusCode::SERVICE_UNAVAILABLE,
                                "there are too many sessions: end one with DELETE",
                            ),
                        },
                    })
                }
            });
            let mut http = hyper::server::conn::http1::Builder::new();
            http.timer(TokioTimer::new()).header_read_timeout(HEAD);
            // A client that breaks the connection is no error of ours.
            let _ = http.serve_connection(TokioIo::new(stream), answer).await;
        });
    }
}

/// Why a request is not passed on.
fn refuse(request: &Request<Incoming>, token: &Token) -> Option<Answer> {
    let header = request.headers().get(AUTHORIZATION);
    if !header.is_some_and(|header| token.is_given(header.as_bytes())) {
        let mut answer = plain(StatusCode::UNAUTHORIZED, "the header Authorization must be \"Bearer TOKEN\"");
        answer.headers_mut().insert(WWW_AUTHENTICATE, hyper::header::HeaderValue::from_static("Bearer"));
        return Some(answer);
    }
    if request.uri().path() != PATH {
        return Some(plain(StatusCode::NOT_FOUND, "the protocol is served at /mcp"));
    }
    None
}

/// The sessions, and when each had its last request.
struct Sessions {
    manager: Arc<LocalSessionManager>,
    asked: Mutex<HashMap<String, Instant>>,
    /// Requests that may make a session, and are not answered yet.
    begun: AtomicUsize,
}

/// A request that may make a session, while it is answered.
struct Begun<'a>(Option<&'a AtomicUsize>);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        if let Some(begun) = self.0 {
            begun.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Sessions {
    /// Lets a request in, of a session if it has one; `None` if it would make a session too many.
    async fn enter(&self, session: Option<String>, method: &Method, now: Instant) -> Option<Begun<'_>> {
        if let Some(id) = session {
            if self.manager.sessions.read().await.contains_key(id.as_str()) {
                self.asked().insert(id, now);
            }
            return Some(Begun(None));
        }
        if method != Method::POST {
            return Some(Begun(None));
        }
        let begun = Begun(Some(&self.begun));
        // Those that are made at the same time count too.
        let others = self.begun.fetch_add(1, Ordering::Relaxed);
        let ids: Vec<SessionId> = self.manager.sessions.read().await.keys().cloned().collect();
        if ids.len() + others < MAX_SESSIONS {
            return Some(begun);
        }
        let quiet = {
            let mut asked = self.asked();
            asked.retain(|id, _| ids.iter().any(|it| **it == **id));
            // One without any request yet is quiet from now on.
            for id in &ids {
                asked.entry(id.to_string()).or_insert(now);
            }
            longest_quiet(&asked, now)?
        };
        let id = ids.into_iter().find(|id| **id == *quiet)?;
        let _ = self.manager.close_session(&id).await;
        Some(begun)
    }

    fn asked(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The session that a request is of.
fn session_of(request: &Request<Incoming>) -> Option<String> {
    let id = request.headers().get("mcp-session-id")?;
    Some(String::from_utf8_lossy(id.as_bytes()).into_owned())
}

/// The session whose last request is the longest ago, if that is long.
fn longest_quiet(asked: &HashMap<String, Instant>, now: Instant) -> Option<String> {
    let oldest = asked.iter().min_by_key(|(_, asked)| **asked)?;
    (now.saturating_duration_since(*oldest.1) >= QUIET).then(|| oldest.0.clone())
}

fn plain(status: StatusCode, text: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from_static(text.as_bytes())).boxed());
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_whole_token_opens() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "0123456789abcdef\n").unwrap();
        let readable_by = |mode| std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        readable_by(0o644);
        assert!(Token::read(Some(&file)).unwrap_err().to_string().contains("any user can read it"));
        readable_by(0o640);
        let token = Token::read(Some(&file)).unwrap();
        assert!(token.is_given(b"Bearer 0123456789abcdef") && token.is_given(b"bearer 0123456789abcdef "));
        for wrong in
            ["", "Bearer", "Bearer ", "Bearer 0123456789abcde", "Bearer 0123456789abcdef0", "Basic 0123456789abcdef"]
        {
            assert!(!token.is_given(wrong.as_bytes()), "{wrong}");
        }
        for short in ["", "0123456789abcde", "0123 456789abcdef", "0123456789abcde\u{e9}"] {
            std::fs::write(&file, short).unwrap();
            assert!(Token::read(Some(&file)).is_err(), "{short}");
        }
        assert!(Token::read(Some(&dir.path().join("none"))).is_err());
    }

    #[test]
    fn a_session_ends_for_another_only_if_its_client_was_quiet_for_long() {
        let begin = Instant::now();
        let asked = |it: [(&str, u64); 2]| it.map(|(id, s)| (id.to_owned(), begin + Duration::from_secs(s))).into();
        let asked: HashMap<String, Instant> = asked([("a", 5), ("b", 3)]);
        assert_eq!(longest_quiet(&asked, begin + QUIET), None);
        assert_eq!(longest_quiet(&asked, begin + QUIET + Duration::from_secs(4)), Some("b".to_owned()));
        assert_eq!(longest_quiet(&HashMap::new(), begin), None);
    }

    #[test]
    fn a_new_session_takes_the_place_of_the_one_that_was_quiet_for_longest() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let manager = Arc::new(LocalSessionManager::default());
            let sessions = Sessions { manager, asked: Mutex::default(), begun: AtomicUsize::new(0) };
            let begin = Instant::now();
            let mut open = Vec::new();
            for seconds in 0..MAX_SESSIONS as u64 {
                let (id, transport) = sessions.manager.create_session().await.unwrap();
                let at = begin + Duration::from_secs(seconds);
                drop(sessions.enter(Some(id.to_string()), &Method::POST, at).await.unwrap());
                open.push((id, transport));
            }
            let early = begin + QUIET.saturating_sub(Duration::from_secs(1));
            assert!(sessions.enter(None, &Method::POST, early).await.is_none());
            // The first is used again, so that the second is quiet for longest.
            drop(sessions.enter(Some(open[0].0.to_string()), &Method::GET, early).await);
            assert!(sessions.enter(None, &Method::POST, begin + QUIET).await.is_none(), "quiet for a second less");
            let later = begin + QUIET + Duration::from_secs(1);
            assert!(sessions.enter(None, &Method::POST, later).await.is_some());
            let left = sessions.manager.sessions.read().await;
            assert_eq!(left.len(), MAX_SESSIONS - 1);
            assert!(left.contains_key(&open[0].0) && !left.contains_key(&open[1].0));
        });
    }

    #[test]
    fn other_hosts_are_not_served() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for address in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0", "127.0.0.2:0"] {
            let bound = runtime.block_on(bind(address.parse().unwrap()));
            assert!(bound.unwrap_err().to_string().contains("only 127.0.0.1"), "{address}");
        }
        assert!(runtime.block_on(bind("127.0.0.1:0".parse().unwrap())).is_ok());
    }
}
