//! A host: its namespaces, its interfaces, and the processes on it.
//!
//! A thread creates and enters the namespaces and starts the processes. The first process is the host's `init`: when it
//! ends, the kernel ends all others on the host. It ends with its parent, however that ends.

use std::env;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use gdr_process::NewNamespaces;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change};
use rustix::process::{Signal, WaitOptions, set_parent_process_death_signal, wait};
use rustix::system::sethostname;
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, configure_capability_in_ambient_set,
    set_capabilities,
};
use signal_hook::consts::SIGCHLD;

use super::NetworkError;
use super::route_socket::{Cable, Impairment, Index, RouteSocket};
use crate::child_program::announced;
use crate::exit::Exit;
use crate::launch::LaunchError;

/// Maximum packet size: the largest MTU of RoCE plus headers.
const MTU: u32 = 9000;

/// Returns the bridge of a rail, in the namespace between the hosts.
pub(super) const fn bridge(rail: u8) -> Index {
    Index(100 + rail as u32)
}

/// Returns the address of a host on a rail.
pub(super) fn address(host: usize, rail: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, rail, host as u8 + 1)
}

/// Returns the interface of a host on a rail.
pub(super) fn interface(rail: u8) -> String {
    format!("eth{rail}")
}

/// What a host is created from.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) host: usize,
    pub(super) rails: u8,
    pub(super) impairment: Impairment,
    /// The file that becomes `/etc/hosts` there.
    pub(super) names: PathBuf,
}

impl Plan {
    pub(super) fn name(&self) -> String {
        format!("host{}", self.host)
    }
}

/// A program to start there.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) path: PathBuf,
    pub(super) name: OsString,
    pub(super) arguments: Vec<OsString>,
    pub(super) environment: Vec<(&'static str, OsString)>,
}

/// A host. Dropping it ends everything that runs there.
#[derive(Debug)]
pub(super) struct Host {
    programs: Option<Sender<Program>>,
    answers: Receiver<Answer>,
    thread: Option<JoinHandle<()>>,
}

/// Answer of a host's thread: that the host is ready, or a program that it has started.
type Answer = Result<Option<Child>, LaunchError>;

impl Host {
    /// Starts to create a host.
    pub(super) fn begin(plan: Plan) -> Result<Self, LaunchError> {
        let (programs, wanted) = channel();
        let (said, answers) = channel();
        let serve = move || {
            let init = match Init::new(&plan) {
                Ok(init) => init,
                Err(error) => {
                    // If another host failed, the receiver is gone.
                    let _ = said.send(Err(error));
                    return;
                }
            };
            let _ = said.send(Ok(None));
            for program in wanted {
                let _ = said.send(start(program).map(Some));
            }
            drop(init);
        };
        let thread = thread::Builder::new()
            .name("host".to_owned())
            .spawn(serve)
            .map_err(LaunchError::Wait)?;
        Ok(Self {
            programs: Some(programs),
            answers,
            thread: Some(thread),
        })
    }

    /// Waits until the host is there.
    pub(super) fn ready(&self) -> Result<(), LaunchError> {
        self.answer().map(drop)
    }

    /// Starts a program.
    pub(super) fn start(&self, program: Program) -> Result<Child, LaunchError> {
        if let Some(programs) = &self.programs {
            // A thread that has ended does not answer.
            let _ = programs.send(program);
        }
        self.answer()?.ok_or_else(gone)
    }

    /// Waits for the thread's answer, which comes after system calls that do not wait for other processes.
    fn answer(&self) -> Answer {
        self.answers.recv().map_err(|_| gone())?
    }
}

fn gone() -> LaunchError {
    LaunchError::Wait(io::ErrorKind::BrokenPipe.into())
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.programs.take());
        // The thread's panic was already printed.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn start(program: Program) -> Result<Child, LaunchError> {
    use std::os::unix::process::CommandExt;
    Command::new(&program.path)
        .arg0(&program.name)
        .args(&program.arguments)
        .envs(program.environment)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| LaunchError::NotStarted {
            path: program.path,
            source,
        })
}

/// The process that holds the namespaces of a host.
#[derive(Debug)]
struct Init(Child);

impl Init {
    /// Makes the host of the calling thread.
    fn new(plan: &Plan) -> Result<Self, LaunchError> {
        // In the namespace between the hosts, which this thread is still in.
        let between = RouteSocket::open().map_err(NetworkError::of("a netlink socket"))?;
        NewNamespaces::Host
            .enter()
            .map_err(NetworkError::NotPermitted)?;
        connect(plan, &between)?;
        mounts(plan)?;
        sethostname(plan.name().as_bytes()).map_err(NetworkError::of("the host name"))?;
        // A program started by a user other than root keeps only ambient capabilities.
        let own = capabilities(None).map_err(NetworkError::of("the capabilities"))?;
        let mut inherited = own;
        inherited.inheritable |= CapabilitySet::SYS_ADMIN;
        set_capabilities(None, inherited)
            .and_then(|()| configure_capability_in_ambient_set(CapabilitySet::SYS_ADMIN, true))
            .map_err(NetworkError::of("the capabilities"))?;
        let init = Self::start();
        clear_ambient_capability_set()
            .and_then(|()| set_capabilities(None, own))
            .map_err(NetworkError::of("the capabilities"))?;
        init
    }

    fn start() -> Result<Self, LaunchError> {
        let failed = |source| LaunchError::from(NetworkError::Init(source));
        let gdr = env::current_exe().map_err(failed)?;
        let child = Command::new(gdr)
            .args(["net", "--hosts", "1", "--init"])
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut init = Self(child);
        let mut line = String::new();
        let output = init.0.stdout.take().into_iter();
        // The process either writes a line or ends.
        for output in output {
            BufReader::new(output)
                .read_line(&mut line)
                .map_err(failed)?;
        }
        match line.trim() {
            READY => Ok(init),
            why => Err(failed(io::Error::other(why.to_owned()))),
        }
    }
}

impl Drop for Init {
    fn drop(&mut self) {
        // Errors mean that it has ended. The kernel ends all other processes of the host before it can be waited for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Connects the namespace of this thread to the bridge of each rail.
fn connect(plan: &Plan, between: &RouteSocket) -> Result<(), NetworkError> {
    let own = RouteSocket::open().map_err(NetworkError::of("a netlink socket"))?;
    let namespace = File::open("/proc/thread-self/ns/net").map_err(NetworkError::NotPermitted)?;
    own.set_up(Index::LOOPBACK)
        .map_err(NetworkError::of("the loopback interface"))?;
    for rail in 0..plan.rails {
        let port = plan.host as u32 * u32::from(plan.rails) + u32::from(rail);
        let near = Index(2 + u32::from(rail));
        let cable = Cable {
            port: (Index(1000 + port), format!("port{port}")),
            bridge: bridge(rail),
            peer: (near, interface(rail)),
            peer_namespace: &namespace,
            mtu: MTU,
        };
        between
            .add_cable(&cable)
            .map_err(NetworkError::of("a pair of virtual interfaces (veth)"))?;
        own.add_address(near, address(plan.host, rail))
            .map_err(NetworkError::of("an address"))?;
        own.set_up(near)
            .map_err(NetworkError::of("a virtual interface"))?;
        if !plan.impairment.is_none() {
            own.add_netem(near, &plan.impairment)
                .map_err(NetworkError::Netem)?;
        }
    }
    Ok(())
}

/// Gives the host its own files. Except for the names, what a container forbids stays as it is outside.
fn mounts(plan: &Plan) -> Result<(), NetworkError> {
    let private = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", private).map_err(NetworkError::of("the mounts"))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    for (kind, place, options) in [
        ("tmpfs", "/dev/shm", Some(c"mode=1777")),
        ("sysfs", "/sys", None),
    ] {
        if let Err(error) = mount(kind, place, kind, flags, options) {
            tracing::info!("{}: {place} belongs to this host: {error}", plan.name());
        }
    }
    if Path::new("/etc/hosts").exists() {
        mount_bind(&plan.names, "/etc/hosts").map_err(NetworkError::of("/etc/hosts"))?;
    }
    Ok(())
}

/// Printed by an `init` whose host is complete.
const READY: &str = "ready";

/// Runs as the first process of a host: adopts orphaned processes until standard input ends.
pub(super) fn init() -> Exit {
    match prepare() {
        Ok(()) => println!("{READY}"),
        Err(why) => {
            println!("{why}");
            return Exit::Launcher;
        }
    }
    let Ok(child_ended) = announced(SIGCHLD) else {
        return Exit::Launcher;
    };
    let stdin = io::stdin();
    loop {
        let mut fds = [
            PollFd::new(&stdin, PollFlags::IN),
            PollFd::new(&child_ended, PollFlags::IN),
        ];
        // Until the job ends.
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return Exit::Launcher,
        }
        let [parent_ended, _] = fds.map(|fd| !fd.revents().is_empty());
        if parent_ended {
            return Exit::Fine;
        }
        // The stream does not block.
        let _ = (&child_ended).read(&mut [0_u8; 64]);
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
}

fn prepare() -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| error.to_string())?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("proc", "/proc", "proc", flags, None)
        .map_err(|error| format!("/proc cannot be mounted ({error})"))
}
