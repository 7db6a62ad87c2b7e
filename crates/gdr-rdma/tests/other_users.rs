//! Processes of several users on one host: which processes are peers without a key, and which share a port. This test
//! binary is also the program of the other processes. Only root can start processes of other users.
#![allow(
    clippy::unwrap_used,
    reason = "a fixture that fails is a test that fails"
)]

use std::io::{self, BufRead, BufReader, IoSlice, Lines, Read, Write};
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{self, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{env, fs};

use gdr_rdma::{Deadline, Device, Listener, PortUse, Security, Service, Session, SoftOptions};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use tempfile::TempDir;

/// Two users without a name.
const A: u32 = 61_001;
const B: u32 = 61_002;
/// The Linux kernel's number for users that a user namespace does not map.
const OVERFLOW: u32 = 65_534;

/// Environment variables with the role of another process, and its address.
const PART: &str = "GDR_TEST_PART";
const PLACE: &str = "GDR_TEST_PLACE";
/// The prefix of its lines, among the lines of the test harness.
const LINE: &str = "other: ";

fn deadline() -> Deadline {
    Deadline::after(Duration::from_secs(60))
}

fn address(n: u8) -> IpAddr {
    IpAddr::from([127, 0, 55, n])
}

fn open(address: IpAddr) -> gdr_rdma::Result<Device> {
    // A device takes a slot per shard.
    let options = SoftOptions::new(address).port_use(PortUse::Shared);
    Device::soft_with(options.shards(1))
}

/// Returns the name of a slot of a port group.
fn name(address: IpAddr, slot: usize) -> net::SocketAddr {
    let address = SocketAddr::new(address, gdr_roce::wire::UDP_PORT);
    net::SocketAddr::from_abstract_name(format!("gdr-roce/{address}/{slot}")).unwrap()
}

/// Prevents processes from starting while a program is written: they would inherit the open file, and the program could
/// not be executed.
fn lock() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A copy of this program that every user can run.
struct Program(TempDir);

impl Program {
    /// Creates the copy; returns `None` if this process cannot start processes of other users.
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skip::skip("only root can start processes of other users");
            return None;
        }
        let program = Self(tempfile::tempdir().unwrap());
        let _guard = lock();
        fs::copy(env::current_exe().unwrap(), program.path()).unwrap();
        for path in [program.0.path(), &program.path()] {
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Some(program)
    }

    fn path(&self) -> std::path::PathBuf {
        self.0.path().join("other")
    }

    fn command(&self, user: u32, part: &str, place: impl ToString) -> Command {
        let mut command = Command::new(self.path());
        command
            .args(["--exact", "another_process", "--ignored", "--nocapture"])
            .env(PART, part)
            .env(PLACE, place.to_string())
            .uid(user)
            .gid(user)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command
    }

    /// Starts a process of a user.
    fn start(&self, user: u32, part: &str, place: impl ToString) -> Other {
        Other::spawn(self.command(user, part, place)).unwrap()
    }

    /// Starts a process of a user in a user namespace that maps only this user, as [`OVERFLOW`]. Fails if users must
    /// not create namespaces.
    fn start_unmapped(&self, user: u32, part: &str, place: impl ToString) -> io::Result<Other> {
        let map = format!("{OVERFLOW} {user} 1\0");
        let mut command = self.command(user, part, place);
        let enter = move || {
            let failed = |result: i32| match result {
                -1 => Err(io::Error::last_os_error()),
                result => Ok(result),
            };
            let map = map.trim_end_matches('\0').as_bytes();
            // SAFETY: the calls change only this process, which has a single thread, and read constants and a text of
            // the stated length.
            unsafe {
                failed(libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0))?;
                failed(libc::unshare(libc::CLONE_NEWUSER))?;
                let file = failed(libc::open(c"/proc/self/uid_map".as_ptr(), libc::O_WRONLY))?;
                if libc::write(file, map.as_ptr().cast(), map.len()) != map.len() as isize {
                    return Err(io::Error::last_os_error());
                }
                failed(libc::close(file))?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec, the closure only makes system calls and allocates nothing.
        unsafe { command.pre_exec(enter) };
        Other::spawn(command)
    }
}

/// A process of another user.
struct Other {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn spawn(mut command: Command) -> io::Result<Self> {
        let mut child = {
            let _guard = lock();
            command.spawn()?
        };
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Ok(Self { child, lines })
    }

    /// Reads the next line that the process prints.
    fn says(&mut self) -> String {
        self.lines
            .by_ref()
            .map(Result::unwrap)
            .find_map(|line| Some(line.split_once(LINE)?.1.to_owned()))
            .expect("it says more")
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn say(line: impl std::fmt::Display) {
    println!("\n{LINE}{line}");
}

#[test]
#[ignore = "the other tests run it in other processes"]
fn another_process() {
    let (Ok(part), Ok(place)) = (env::var(PART), env::var(PLACE)) else {
        return;
    };
    match part.as_str() {
        "listen" => listen(&Security::Loopback),
        "take the port" => listen(&Security::Insecure),
        "connect" => connect(place.parse().unwrap()),
        "stay" => {
            let mut server = TcpStream::connect(&place).unwrap();
            // A greeting of version 3, without a key.
            let mut hello = b"gdr-rdma\x03\0\0\0".to_vec();
            // The greeting has no service.
            hello.extend([0; Service::LEN]);
            hello.resize(hello.len() + 32, 7);
            server.write_all(&hello).unwrap();
            let _ = io::stdin().read(&mut [0]);
        }
        "open" => {
            match open(place.parse().unwrap()) {
                Ok(_device) => {
                    say("open");
                    let _ = io::stdin().read(&mut [0]);
                }
                Err(error) => say(error),
            };
        }
        "ask" => {
            let mut member = UnixStream::connect_addr(&name(place.parse().unwrap(), 0)).unwrap();
            member
                .set_read_timeout(Some(Duration::from_secs(20)))
                .unwrap();
            say(format_args!(
                "received {:?}",
                member.read(&mut [0; 64]).unwrap()
            ));
        }
        "offer" => offer(place.parse().unwrap()),
        part => panic!("{part}"),
    }
}

/// Accepts a peer, and prints the errors of the other connections.
fn listen(security: &Security) {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    say(listener.address().unwrap());
    let accepted = listener.accept_noting(security, deadline(), |_, error| say(error));
    say(if accepted.is_ok() { "accepted" } else { "late" });
    let _ = io::stdin().read(&mut [0]);
}

fn connect(to: SocketAddr) {
    match Session::connect(to, &Security::Loopback, deadline()) {
        Err(error) => say(error),
        Ok(mut session) => {
            say("connected");
            say(session.receive(deadline()).unwrap_err());
        }
    }
}

/// Takes the name of a slot, and hands out unrelated files to processes that join.
fn offer(address: IpAddr) {
    let listener = UnixListener::bind_addr(&name(address, 0)).unwrap();
    say("offers");
    let file = fs::File::open("/dev/null").unwrap();
    let files = [file.as_fd(); 64];
    for joining in listener.incoming() {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(64))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&files));
        let greeting = [IoSlice::new(b"gdr port group 1")];
        let _ = rustix::net::sendmsg(
            joining.unwrap(),
            &greeting,
            &mut control,
            SendFlags::NOSIGNAL,
        );
    }
}

#[test]
fn without_a_key_only_the_same_user_and_root_are_peers_on_loopback() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut server = program.start(A, "listen", "");
    let at = server.says();
    let stranger = program.start(B, "connect", &at).says();
    assert!(
        stranger.contains(&format!("a process of user {A}")),
        "{stranger}"
    );
    assert!(stranger.contains("give both sides a key"), "{stranger}");
    let noted = server.says();
    assert!(noted.contains(&format!("a process of user {B}")), "{noted}");
    assert_eq!(program.start(A, "connect", &at).says(), "connected");
    assert_eq!(server.says(), "accepted");

    let mut server = program.start(A, "listen", "");
    let at = server.says().parse().unwrap();
    // Root must state explicitly that it trusts a listener of another user.
    let root = Session::connect(at, &Security::Insecure, deadline());
    assert_eq!(server.says(), "accepted");

    // A stranger that keeps the connection open is logged when its time is over.
    let mut server = program.start(A, "listen", "");
    let _stranger = program.start(B, "stay", server.says());
    let noted = server.says();
    assert!(noted.contains(&format!("a process of user {B}")), "{noted}");
    drop(root.unwrap());
}

#[test]
fn roots_listener_refuses_a_user_without_a_key_and_says_why() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut server = program.start(0, "listen", "");
    let at = server.says();
    let mut user = program.start(A, "connect", &at);
    assert_eq!(user.says(), "connected", "to root's listener");
    let refused = user.says();
    assert!(
        refused.contains(&format!("your side is a process of user {A}")),
        "{refused}"
    );
    assert!(refused.contains("give both sides a key"), "{refused}");
    let noted = server.says();
    assert!(noted.contains(&format!("a process of user {A}")), "{noted}");
}

#[test]
fn a_client_refuses_the_listener_of_another_user_that_took_the_port() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut squatter = program.start(B, "take the port", "");
    let at = squatter.says();
    let refused = program.start(A, "connect", &at).says();
    assert!(
        refused.contains(&format!("a process of user {B}")),
        "{refused}"
    );
    // The same applies if root is the client.
    let mut squatter = program.start(B, "take the port", "");
    let at = squatter.says().parse().unwrap();
    let refused = Session::connect(at, &Security::Loopback, deadline()).unwrap_err();
    assert!(
        refused
            .to_string()
            .contains(&format!("a process of user {B}")),
        "{refused}"
    );
}

#[test]
fn the_sockets_of_a_port_group_are_given_to_the_same_user_only() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut member = program.start(A, "open", address(1));
    assert_eq!(member.says(), "open");
    assert_eq!(program.start(B, "ask", address(1)).says(), "received 0");
    // Nor to root, which would keep the user's port in use.
    assert_eq!(program.start(0, "ask", address(1)).says(), "received 0");
    assert_eq!(program.start(A, "ask", address(1)).says(), "received 16");
    let refused = program.start(B, "open", address(1)).says();
    assert!(refused.contains("in use"), "{refused}");
}

#[test]
fn the_sockets_of_another_users_process_are_not_taken() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut other = program.start(B, "offer", address(2));
    assert_eq!(other.says(), "offers");
    let mut member = program.start(A, "open", address(2));
    assert_eq!(member.says(), "open");
    // The group belongs to A, so A's second device can join it.
    assert_eq!(program.start(A, "open", address(2)).says(), "open");
}

#[test]
fn users_that_a_namespace_does_not_map_are_not_the_same_user() {
    let Some(program) = Program::new() else {
        return;
    };
    let mut server = match program.start_unmapped(A, "listen", "") {
        Ok(server) => server,
        Err(error) => {
            skip::skip(format_args!(
                "users cannot make user namespaces here: {error}"
            ));
            return;
        }
    };
    let at = server.says();
    // Both users have the same number in that namespace, so the server cannot distinguish its own user from the other.
    let _stranger = program.start(B, "connect", &at);
    let noted = server.says();
    assert!(noted.contains("the kernel does not tell"), "{noted}");
    assert!(noted.contains("shared key"), "{noted}");
    drop(server);

    let mut member = program.start_unmapped(A, "open", address(3)).unwrap();
    assert_eq!(member.says(), "open");
    assert_eq!(program.start(B, "ask", address(3)).says(), "received 0");
    let refused = program
        .start_unmapped(A, "open", address(3))
        .unwrap()
        .says();
    assert!(refused.contains("does not map all users"), "{refused}");
}
