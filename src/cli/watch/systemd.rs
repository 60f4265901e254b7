//! The messages of `watch` to systemd (sd_notify(3)), which never block.
//!
//! The crate sd-notify sends and waits: a service manager that hangs would hang the watch.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The socket, if there is one, and what has yet to be said.
#[derive(Debug, Default)]
pub(super) struct Systemd {
    socket: Option<UnixDatagram>,
    ready: bool,
    /// The last status that could not be sent.
    status: Option<String>,
}

impl Systemd {
    /// For the socket that the environment names; without a valid one, no messages are sent.
    pub(super) fn of_environment() -> Self {
        let socket = std::env::var_os("NOTIFY_SOCKET").and_then(|name| connected(&name).ok());
        Self { socket, ..Self::default() }
    }

    /// It samples.
    pub(super) fn ready(&mut self) {
        self.ready = true;
        self.alive();
    }

    /// It is alive; also what could not be said before.
    pub(super) fn alive(&mut self) {
        let mut text = "WATCHDOG=1\n".to_owned();
        if self.ready {
            text.push_str("READY=1\n");
        }
        if let Some(status) = &self.status {
            let _ = writeln!(text, "STATUS={status}");
        }
        if self.send(&text) {
            self.ready = false;
            self.status = None;
        }
    }

    /// The result of an interval, in a line.
    pub(super) fn status(&mut self, line: &str) {
        self.status = Some(line.replace('\n', " "));
        self.alive();
    }

    /// It ends.
    pub(super) fn stopping(&self) {
        self.send("STOPPING=1\n");
    }

    /// True if it was sent; a full socket is not waited for.
    fn send(&self, text: &str) -> bool {
        self.socket.as_ref().is_some_and(|socket| socket.send(text.as_bytes()).is_ok())
    }
}

fn connected(name: &OsStr) -> io::Result<UnixDatagram> {
    let address = match name.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(name)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_socket_is_not_waited_for_and_nothing_important_is_lost() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let mut systemd = Systemd { socket: Some(connected(path.as_os_str()).unwrap()), ..Systemd::default() };
        let mut sent = 0;
        while systemd.send("WATCHDOG=1\n") {
            sent += 1;
        }
        systemd.ready();
        systemd.status("two\nlines");
        let mut buffer = [0; 256];
        for _ in 0..sent {
            socket.recv(&mut buffer).unwrap();
        }
        systemd.alive();
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), "WATCHDOG=1\nREADY=1\nSTATUS=two lines\n");
        systemd.alive();
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(String::from_utf8_lossy(&buffer[..length]), "WATCHDOG=1\n");
    }

    #[test]
    fn a_name_without_a_file_is_found() {
        let name = format!("scxprof-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let mut systemd =
            Systemd { socket: Some(connected(OsStr::new(&format!("@{name}"))).unwrap()), ..Systemd::default() };
        systemd.alive();
        let mut buffer = [0; 256];
        assert_eq!(socket.recv(&mut buffer).unwrap(), 11);
    }
}
