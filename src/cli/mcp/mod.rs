//! `scxprof mcp`: a server of the Model Context Protocol (<https://modelcontextprotocol.io>, specification 2025-11-25), by which an
//! agent uses scxprof.

mod capturing;
mod context;
mod error;
mod http;
mod page;
mod paths;
mod profiling;
mod prompts;
mod recordings;
mod resources;
mod server;
mod subscriptions;
mod tools;
mod work;

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context as Poller, Poll};
use std::time::Duration;

use anyhow::{anyhow, Context as _};
use clap::Args;
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{RoleServer, ServiceExt};
use rustix::event::{PollFd, PollFlags};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::Notify;

use self::context::Shared;
use self::http::Token;
use self::paths::Below;
use self::server::Server;
use self::work::Workers;
use super::failure::Failure;
use super::output::Stdout;
use super::signals::Signals;

pub(super) use self::context::RunLine;

const EXAMPLES: &str = "\
Examples:
  scxprof mcp                                    serve the client that starts it, on stdin and stdout
  scxprof mcp --root /var/lib/recordings         read recordings there only
  scxprof mcp --allow-write out                  and let it write new files below ./out
  scxprof mcp --listen 127.0.0.1:7878 --token-file FILE   serve several clients of this host
docs/mcp.md has the configuration of clients, the tools and a session.";

/// Bytes of a request.
const MAX_REQUEST: usize = 1 << 20;
/// How long work may take to end with the server.
const END: Duration = Duration::from_secs(3);
/// How long calls may go on once stdin has ended, and then what the server writes may wait for a client that does not read.
const AFTER_STDIN: Duration = Duration::from_secs(6);
/// Between two looks at whether a signal came or a time is over.
const LOOK: Duration = Duration::from_millis(100);

/// Serve an agent by the Model Context Protocol
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct McpArgs {
    /// Read recordings and configurations only below DIR
    #[arg(long, value_name = "DIR", default_value = ".")]
    root: PathBuf,
    /// Let tools write new files below DIR; without it they write none
    #[arg(long, value_name = "DIR")]
    allow_write: Option<PathBuf>,
    /// Memory by which a call may let the server grow before it is ended
    #[arg(long, value_name = "MIB", default_value = "1024", value_parser = clap::value_parser!(u64).range(32..))]
    max_memory: u64,
    /// Serve several clients over streamable HTTP at http://ADDRESS/mcp instead of one on stdin and stdout; only of this host, and
    /// only with the token
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// With --listen: the file whose text clients must send as `Authorization: Bearer TEXT` [default: $SCXPROF_MCP_TOKEN]
    #[arg(long, value_name = "FILE", requires = "listen")]
    token_file: Option<PathBuf>,
}

/// Serves until the client goes away or a signal comes.
pub(super) fn run(args: &McpArgs, stdout: Stdout, run_line: RunLine) -> Result<(), Failure> {
    let below = |option: &str, path: &PathBuf| {
        Below::new(path).map_err(|error| Failure::Usage(anyhow!("{option} {}: {error}", path.display())))
    };
    let root = below("--root", &args.root)?;
    let writable = args.allow_write.as_ref().map(|path| below("--allow-write", path)).transpose()?;
    let token = args.listen.map(|_| Token::read(args.token_file.as_deref()));
    let token = token.transpose().map_err(Failure::Usage)?;
    if token.is_none() {
        stdout.demand("there is nowhere to answer to")?;
    }
    let signals = Signals::handle().map_err(Failure::Unsupported)?;
    let shared = Arc::new(Shared::new(root, writable, run_line));
    let workers = Arc::new(Workers::new(args.max_memory.saturating_mul(1 << 20)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("cannot start the server").map_err(Failure::Unsupported)?;
    let make = {
        let (shared, workers) = (Arc::clone(&shared), Arc::clone(&workers));
        move || Server::new(Arc::clone(&shared), Arc::clone(&workers))
    };
    let listener = args.listen.map(|address| runtime.block_on(http::bind(address)));
    let listener = listener.transpose().map_err(Failure::Usage)?;
    let served = runtime.block_on(async {
        let serve = async {
            match listener.zip(token) {
                Some((listener, token)) => {
                    say!("listening on http://{}/mcp", listener.local_addr().context("no address")?);
                    http::serve(listener, token, make).await
                }
                None => stdio(make()).await,
            }
        };
        tokio::select! {
            served = serve => served,
            () = watch(&signals, &shared) => Ok(()),
        }
    });
    workers.stop();
    shared.profiling.end();
    shared.capturing.end();
    runtime.shutdown_timeout(END);
    served.map_err(Failure::NoResult)
}

/// Waits for a signal; meanwhile it ends the capture when its time is over.
async fn watch(signals: &Signals, shared: &Arc<Shared>) {
    while !signals.seen() {
        tokio::time::sleep(LOOK).await;
        if shared.capturing.is_over() {
            let shared = Arc::clone(shared);
            // It waits for threads, for which clients must not wait.
            let _ = tokio::task::spawn_blocking(move || shared.capturing.end_in_time()).await;
        }
    }
}

/// The protocol's stdout for it alone: what else is written to stdout goes to stderr from now on.
fn own_stdout() -> anyhow::Result<File> {
    let own = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3).context("cannot keep stdout")?;
    rustix::stdio::dup2_stdout(rustix::stdio::stderr()).context("cannot replace stdout")?;
    Ok(own.into())
}

/// Stdin, which tells when it has ended.
struct Stdin {
    stdin: tokio::io::Stdin,
    ended: Arc<Notify>,
}

impl AsyncRead for Stdin {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Poller<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stdin).poll_read(context, into);
        if matches!(read, Poll::Ready(Err(_))) || read.is_ready() && into.filled().len() == before {
            self.ended.notify_one();
        }
        read
    }
}

/// Waits until the client can send nothing more: stdin has ended, or is a pipe without a writer. The latter is seen also while
/// messages wait for a client that does not read, as then none are read either.
async fn gone(ended: &Notify) {
    let stdin = rustix::stdio::stdin();
    loop {
        tokio::select! {
            () = ended.notified() => return,
            () = tokio::time::sleep(LOOK) => {}
        }
        let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
        let _ = rustix::event::poll(&mut polled, Some(&rustix::event::Timespec::default()));
        let hung_up = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        if polled.iter().any(|it| it.revents().intersects(hung_up)) {
            return;
        }
    }
}

/// Serves one client on stdin and stdout.
async fn stdio(server: Server) -> anyhow::Result<()> {
    let stdout = tokio::fs::File::from_std(own_stdout()?);
    let ended = Arc::new(Notify::new());
    let stdin = Stdin { stdin: tokio::io::stdin(), ended: Arc::clone(&ended) };
    let transport = AsyncRwTransport::<RoleServer, _, _>::new(stdin, stdout).with_max_line_length(MAX_REQUEST);
    let serve = async {
        match server.serve(transport).await {
            Ok(service) => {
                service.waiting().await.context("the server failed")?;
                Ok(())
            }
            Err(rmcp::service::ServerInitializeError::ConnectionClosed(_)) => Ok(()),
            Err(error) => Err(anyhow!("{error}")),
        }
    };
    let late = async {
        gone(&ended).await;
        tokio::time::sleep(AFTER_STDIN).await;
    };
    tokio::select! {
        served = serve => served,
        () = late => Ok(()),
    }
}
