//! A program that runs with a deadline, and a server with its client.

use std::fs::{self, File};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// How often to check whether a server listens, which nothing announces.
const LISTEN_INTERVAL: Duration = Duration::from_millis(5);
/// Number of lines of a program's output to print. A program that writes to a file writes its errors before the output
/// printed until then.
const PRINTED: usize = 30;

/// How a server ends after its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerEnd {
    ByItself,
    /// It serves further clients until it is killed.
    Killed,
}

/// Runs a server, and its client once the server listens at a port of TCP or rdma_cm, or has joined a multicast group
/// at this UDP port. Each end's output goes to a file. Returns what failed.
pub(crate) fn serve(
    port: u16,
    end: ServerEnd,
    [server, client]: [Command; 2],
    [server_output, client_output]: [PathBuf; 2],
    deadline: Instant,
) -> anyhow::Result<Option<String>> {
    let mut server = Running::start(server, server_output)?;
    while !is_listening(port)? {
        if server.has_ended(Instant::now() + LISTEN_INTERVAL)? || Instant::now() > deadline {
            return Ok(Some("the server did not listen".to_owned()));
        }
    }
    let mut client = Running::start(client, client_output)?;
    if let Some(failure) = client.failure(deadline)? {
        return Ok(Some(format!("the client {failure}")));
    }
    if end == ServerEnd::Killed {
        return Ok(None);
    }
    let failure = server.failure(deadline)?;
    Ok(failure.map(|failure| format!("the server {failure}")))
}

/// A program, killed on drop.
pub(crate) struct Running(Child);

impl Running {
    /// Starts a program with one file for all that it prints.
    pub(crate) fn start(command: Command, output: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&output).with_context(|| output.display().to_string())?;
        Self::start_with(command, file.try_clone()?, file)
    }

    /// Starts a program with a file or a pipe for its output, and one for its messages.
    pub(crate) fn start_with(
        mut command: Command,
        output: impl Into<Stdio>,
        messages: impl Into<Stdio>,
    ) -> anyhow::Result<Self> {
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(messages)
            .spawn()
            .with_context(|| format!("{name} cannot be started"))?;
        Ok(Self(child))
    }

    /// Returns its process.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Takes the pipe of its output, if it has one that was not taken.
    pub(crate) fn take_output(&mut self) -> Option<ChildStdout> {
        self.0.stdout.take()
    }

    /// Ends it at once.
    pub(crate) fn kill(&mut self) -> anyhow::Result<()> {
        self.0.kill().context("a process cannot be killed")
    }

    /// Waits until it ended; `None` if it runs at the deadline.
    pub(crate) fn status(&mut self, deadline: Instant) -> anyhow::Result<Option<ExitStatus>> {
        if !self.has_ended(deadline)? {
            return Ok(None);
        }
        Ok(Some(self.0.wait()?))
    }

    /// Waits until it ended; `false` if it runs at the deadline.
    pub(crate) fn has_ended(&mut self, deadline: Instant) -> anyhow::Result<bool> {
        let id = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw);
        let process = pidfd_open(id.context("no process id")?, PidfdFlags::empty())?;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut fds = [PollFd::new(&process, PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&Timespec::try_from(left)?))?;
        Ok(self.0.try_wait()?.is_some())
    }

    /// Waits until it ended; returns what is wrong with that.
    pub(crate) fn failure(&mut self, deadline: Instant) -> anyhow::Result<Option<String>> {
        Ok(match self.status(deadline)? {
            None => Some("did not end".to_owned()),
            Some(status) => (!status.success()).then(|| format!("failed ({status})")),
        })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a TCP port that is free at an address. Another process may take it in the meantime.
pub(crate) fn free_port(address: IpAddr) -> anyhow::Result<u16> {
    Ok(TcpListener::bind((address, 0))?.local_addr()?.port())
}

/// Returns whether a socket or gdr's rdma_cm listens at a port, or a socket has joined a multicast group there.
/// Connecting would take the place of the client.
fn is_listening(port: u16) -> anyhow::Result<bool> {
    if lists_service(&fs::read_to_string("/proc/net/unix")?, port) {
        return Ok(true);
    }
    if lists_member(&fs::read_to_string("/proc/net/udp")?, port) {
        return Ok(true);
    }
    for file in ["/proc/net/tcp", "/proc/net/tcp6"] {
        // Without IPv6, there is no second file.
        let table = fs::read_to_string(file).unwrap_or_default();
        if lists_listener(&table, port) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads the kernel's table of TCP sockets: number, local address, remote address, state.
fn lists_listener(table: &str, port: u16) -> bool {
    /// `TCP_LISTEN` of include/net/tcp_states.h.
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        fields.next().is_some_and(|local| local.ends_with(&port)) && fields.nth(1) == Some(LISTEN)
    })
}

/// Looks for a multicast group at `port` in the kernel's table of UDP sockets, which lists sockets of a group under
/// its address.
fn lists_member(table: &str, port: u16) -> bool {
    let locals = table.lines().skip(1);
    let locals = locals.filter_map(|line| line.split_whitespace().nth(1)?.split_once(':'));
    let mut at_port = locals.filter(|local| u16::from_str_radix(local.1, 16) == Ok(port));
    at_port.any(|(address, _)| {
        let address = u32::from_str_radix(address, 16).unwrap_or(0);
        Ipv4Addr::from(address.to_ne_bytes()).is_multicast()
    })
}

/// Reads the kernel's table of Unix sockets, which names the services that gdr's processes listen for.
fn lists_service(table: &str, port: u16) -> bool {
    // Port spaces of TCP, UDP and InfiniBand.
    let services = ["106", "111", "13f"].map(|space| format!("/cm/service/{space}{port:04x}"));
    let mut lines = table.lines();
    lines.any(|line| services.iter().any(|service| line.ends_with(service)))
}

/// Prints the last lines of a program's output.
pub(crate) fn print_end(end: &str, file: &Path) {
    let text = fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<_> = text.lines().collect();
    for line in &lines[lines.len().saturating_sub(PRINTED)..] {
        println!("    {end}: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_socket_is_found_in_the_kernels_table() {
        let table = "  sl  local_address rem_address   st tx_queue\n\
             0: 0100007F:4855 00000000:0000 0A 00000000\n\
             1: 0100007F:1234 0100007F:4856 01 00000000\n";
        assert!(lists_listener(table, 0x4855));
        assert!(!lists_listener(table, 0x1234));
        assert!(!lists_listener(table, 0x4856));
    }

    #[test]
    fn a_member_of_a_multicast_group_is_found_by_its_port() {
        let table = "   sl  local_address rem_address   st tx_queue\n\
             1: 0100007F:12B7 00000000:0000 07 00000000\n\
             2: 010101EF:12B8 00000000:0000 07 00000000\n";
        assert!(!lists_member(table, 0x12b7));
        assert!(lists_member(table, 0x12b8));
    }

    #[test]
    fn a_service_is_found_by_its_port() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
             0: 2 0 10000 5 01 1 @gdr-roce/127.0.0.1:4791/cm/service/1061d2f\n";
        assert!(lists_service(table, 0x1d2f));
        assert!(lists_service(&table.replace("106", "13f"), 0x1d2f));
        assert!(!lists_service(table, 0x1d2));
        assert!(!lists_service(table, 0x2f));
    }
}
