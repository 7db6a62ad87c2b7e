//! Owners and readers in many processes, which are killed at random moments.
//!
//! ```text
//! cargo run --release -p gdr-object --example soak -- peers=100 objects=1000 kills=1000 limit=1800
//! ```
//!
//! A tenth of the peers own the objects, including a blocking ring each. The others get them, wait for them, and follow
//! the rings. A killed process is restarted at once. This process is also an owner and a reader, and survives: after
//! all kills it must have the same number of descriptors and threads, and use as much memory, as after the first tenth
//! of them.
//!
//! It ends with an error if a get is torn or returns another object or another run of its owner, if epochs decrease, if
//! a follower misses one, if a call exceeds its deadline, or after `limit` seconds.

use std::env;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use gdr_object::{
    Deadline, Element, Epoch, Error as ObjectError, Follower, Link, LinkOptions, LocalMemory, Mode,
    Object, ObjectName, ObjectOptions, ObjectServer, Place, RemoteObject, Security, ServerOptions,
    Shape, WhenFull,
};

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// How long a call may take.
const LIMIT: Duration = Duration::from_secs(20);
/// How much later it may return, on a machine with many more processes than cores.
const GRACE: Duration = Duration::from_secs(20);
/// How long a reader waits for an epoch.
const WAIT: Duration = Duration::from_millis(20);
/// Pause between two steps of a process.
const PAUSE: Duration = Duration::from_millis(2);
/// The name of the ring of each owner.
const RING: &str = "ring";
/// Bytes by which the memory of this process may have grown in the end.
const GROWTH: u64 = 32 << 20;

/// What is run.
#[derive(Clone, Copy, Debug)]
struct Plan {
    peers: usize,
    objects: usize,
    kills: usize,
    seed: u64,
    limit: Duration,
}

impl Plan {
    fn parse(arguments: &[String]) -> Outcome<Self> {
        let mut plan = Self {
            peers: 8,
            objects: 40,
            kills: 20,
            seed: 1,
            limit: Duration::from_secs(300),
        };
        for argument in arguments {
            let (key, value) = argument.split_once('=').ok_or("give KEY=NUMBER")?;
            let number: u64 = value.parse()?;
            match key {
                "peers" => plan.peers = number as usize,
                "objects" => plan.objects = number as usize,
                "kills" => plan.kills = number as usize,
                "seed" => plan.seed = number,
                "limit" => plan.limit = Duration::from_secs(number),
                _ => return Err("the keys are peers, objects, kills, seed and limit".into()),
            }
        }
        Ok(plan)
    }

    /// Returns how many peers own objects; one more is this process.
    fn owners(&self) -> usize {
        (self.peers / 10).max(1)
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end.max(1) as u64) as usize
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let texts: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ended = match texts[..] {
        ["owner", folder, index, objects, seed] => own_as_process(folder, index, objects, seed),
        ["reader", folder, owners, seed] => read_as_process(folder, owners, seed),
        _ => Plan::parse(&arguments).and_then(run),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}: {error}", texts.join(" "));
            ExitCode::FAILURE
        }
    }
}

// ---- owners

/// Returns the content of an object at an epoch: this word again and again. It belongs to one object, one run of an
/// owner and one epoch.
fn word(generation: u64, object: &str, epoch: u64) -> u64 {
    let mut random = Random(generation);
    let name = object.bytes().fold(random.next(), |sum, byte| {
        Random(sum ^ u64::from(byte)).next()
    });
    Random(name ^ epoch).next()
}

/// An owner with its objects.
struct Owner {
    server: ObjectServer,
    objects: Vec<(Object, u64)>,
    random: Random,
}

impl Owner {
    fn start(folder: &Path, index: usize, objects: usize, seed: u64) -> Outcome<Self> {
        let server = ObjectServer::bind(
            "127.0.0.1:0".parse()?,
            ServerOptions::new(Security::Loopback),
        )?;
        let mut all = Vec::new();
        for at in 0..objects {
            let name = if at == 0 {
                RING.to_owned()
            } else {
                format!("o{at}")
            };
            let words = if at == 0 {
                1
            } else {
                1 + 100 * (at as u64 % 8)
            };
            let mut options = ObjectOptions::new(Element::U64, Shape::row(words)?);
            if at == 0 {
                options = options.mode(Mode::Ring {
                    slots: 4,
                    when_full: WhenFull::Block,
                });
            }
            let object = server.create(ObjectName::new(name)?, options, &Place::host())?;
            all.push((object, 0));
        }
        let mut owner = Self {
            server,
            objects: all,
            random: Random(seed),
        };
        for at in 0..objects {
            owner.publish(at)?;
        }
        // Readers find it by this file, which exists at once.
        let file = folder.join(index.to_string());
        let new = file.with_extension("new");
        fs::write(&new, owner.server.address().to_string())?;
        fs::rename(new, file)?;
        Ok(owner)
    }

    fn publish(&mut self, at: usize) -> Outcome {
        let generation = self.server.generation().get();
        let (object, last) = &mut self.objects[at];
        let next = *last + 1;
        let word = word(generation, object.name().as_str(), next).to_le_bytes();
        let content = word.repeat(object.info()?.bytes as usize / 8);
        let epoch = timed("publish", || Ok(object.publish(&content, deadline())?))?;
        if epoch.get() != next {
            return Err(format!("epoch {epoch} was published in place of {next}").into());
        }
        *last = next;
        Ok(())
    }

    /// Publishes an object, and to the ring.
    fn step(&mut self) -> Outcome {
        let at = self.random.below(self.objects.len());
        self.publish(at)?;
        self.publish(0)
    }
}

fn own_as_process(folder: &str, index: &str, objects: &str, seed: &str) -> Outcome {
    let folder = Path::new(folder);
    let mut owner = Owner::start(folder, index.parse()?, objects.parse()?, seed.parse()?)?;
    let stop = stop_at_end_of_input();
    while !stop.load(Ordering::Relaxed) {
        owner.step()?;
        thread::sleep(PAUSE);
    }
    Ok(())
}

/// Returns a flag that is set when the process that started this one has ended.
fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&stop);
    thread::spawn(move || {
        // An error counts as the end too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::Relaxed);
    });
    stop
}

// ---- readers

fn deadline() -> Deadline {
    Deadline::after(LIMIT)
}

/// Fails if a call lasts longer than [`LIMIT`].
fn timed<T>(what: &str, call: impl FnOnce() -> Outcome<T>) -> Outcome<T> {
    let began = Instant::now();
    let result = call();
    let took = began.elapsed();
    if took > LIMIT + GRACE {
        let text = format!("{what} lasted {took:?}, and its deadline was {LIMIT:?}");
        return Err(violation(text));
    }
    result
}

/// Something that must not happen, unlike errors of calls whose owner was killed.
#[derive(Debug)]
struct Violation(String);

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for Violation {}

fn violation(what: String) -> Box<dyn Error + Send + Sync> {
    Box::new(Violation(what))
}

/// What readers have done.
#[derive(Clone, Copy, Debug, Default)]
struct Done {
    /// Whole epochs that were got.
    gets: u64,
    /// Epochs of rings that were followed.
    followed: u64,
    /// Calls that ended because their owner ended or did not answer in time.
    gone: u64,
}

impl FromStr for Done {
    type Err = Box<dyn Error + Send + Sync>;

    fn from_str(text: &str) -> Outcome<Self> {
        let numbers: Vec<u64> = text.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        match numbers[..] {
            [gets, followed, gone] => Ok(Self {
                gets,
                followed,
                gone,
            }),
            _ => Err("not three numbers".into()),
        }
    }
}

/// A reader of the owners whose addresses are in a folder.
struct Reader<'a> {
    folder: &'a Path,
    owners: usize,
    random: Random,
    done: Done,
}

/// An object that a reader has open.
struct Opened {
    object: RemoteObject,
    memory: LocalMemory,
    last: Option<Epoch>,
}

impl Reader<'_> {
    /// Uses one owner until it ends, or for some steps.
    fn visit(&mut self, stop: &AtomicBool) -> Outcome {
        let owner = self.random.below(self.owners);
        let Ok(address) = fs::read_to_string(self.folder.join(owner.to_string())) else {
            // It has not begun yet.
            thread::sleep(PAUSE);
            return Ok(());
        };
        match self.use_owner(address.parse()?, stop) {
            Err(error) if error.is::<Violation>() => Err(error),
            Err(error) => match error.downcast_ref::<ObjectError>() {
                // The owner was killed before, during or after its use.
                Some(
                    ObjectError::Gone { .. }
                    | ObjectError::NoAnswer { .. }
                    | ObjectError::Stalled { .. }
                    | ObjectError::Transfer { .. }
                    | ObjectError::Rdma(_),
                ) => {
                    self.done.gone += 1;
                    thread::sleep(PAUSE);
                    Ok(())
                }
                _ => Err(error),
            },
            Ok(()) => Ok(()),
        }
    }

    fn use_owner(&mut self, owner: SocketAddr, stop: &AtomicBool) -> Outcome {
        let options = LinkOptions::new(Security::Loopback);
        let link = timed("connect", || Ok(Link::connect(owner, options, deadline())?))?;
        let generation = timed("generation", || Ok(link.generation(deadline())?))?.get();
        let names = timed("list", || Ok(link.list(deadline())?))?;
        let mut opened: Vec<Option<Opened>> = names.iter().map(|_| None).collect();
        for _ in 0..self.random.below(60) {
            if stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let at = self.random.below(names.len());
            let it = match &mut opened[at] {
                Some(it) => it,
                new => {
                    let name = names[at].name.clone();
                    let object = timed("open", || Ok(link.open(name, deadline())?))?;
                    let memory = link.host_memory(object.info().bytes)?;
                    let last = None;
                    new.insert(Opened {
                        object,
                        memory,
                        last,
                    })
                }
            };
            match self.random.below(4) {
                0 => wait(it)?,
                1 => self.follow(&link, generation)?,
                _ => {
                    get(it, generation)?;
                    self.done.gets += 1;
                }
            }
            thread::sleep(PAUSE);
        }
        Ok(())
    }

    /// Follows the ring for some epochs.
    fn follow(&mut self, link: &Link, generation: u64) -> Outcome {
        let ring = timed(
            "open",
            || Ok(link.open(ObjectName::new(RING)?, deadline())?),
        )?;
        let memory = link.host_memory(ring.info().bytes)?;
        let mut follower = timed("follow", || Ok(ring.follow(deadline())?))?;
        for _ in 0..self.random.below(20) {
            next(&mut follower, &memory, generation)?;
            self.done.followed += 1;
        }
        Ok(())
    }
}

/// Reads the next epoch of a ring that blocks.
fn next(follower: &mut Follower<'_>, memory: &LocalMemory, generation: u64) -> Outcome {
    let last = follower.last().map_or(0, Epoch::get);
    let received = timed("next", || Ok(follower.next_into(memory, deadline())?))?;
    let epoch = received.epoch.get();
    if (epoch, received.missed) != (last + 1, 0) {
        let text = format!("after epoch {last} of a ring came {epoch}");
        return Err(violation(text));
    }
    check(memory, word(generation, RING, epoch), epoch)
}

/// Gets an object and checks every word.
fn get(it: &mut Opened, generation: u64) -> Outcome {
    let Opened {
        object,
        memory,
        last,
    } = it;
    let epoch = timed("get", || Ok(object.get_into(memory, deadline())?))?;
    let expected = word(generation, object.name().as_str(), epoch.get());
    check(memory, expected, epoch.get())?;
    if *last > Some(epoch) {
        let text = format!("epoch {epoch} came after {last:?}");
        return Err(violation(text));
    }
    *last = Some(epoch);
    Ok(())
}

fn check(memory: &LocalMemory, expected: u64, epoch: u64) -> Outcome {
    let mut bytes = vec![0; memory.len() as usize];
    memory.buffer().read_at(0, &mut bytes)?;
    match bytes.chunks_exact(8).all(|it| it == expected.to_le_bytes()) {
        true => Ok(()),
        false => Err(violation(format!(
            "epoch {epoch} is torn or of another object"
        ))),
    }
}

/// Waits for an epoch, which may not come.
fn wait(it: &mut Opened) -> Outcome {
    let waited = timed("wait", || {
        Ok(it.object.wait_newer(it.last, Deadline::after(WAIT))?)
    });
    match waited {
        Err(error) => match error.downcast_ref::<ObjectError>() {
            // On a busy machine an answer takes longer than this wait.
            Some(ObjectError::NothingNewer { .. } | ObjectError::Stalled { .. }) => Ok(()),
            _ => Err(error),
        },
        Ok(epoch) if Some(epoch) <= it.last => {
            let text = format!("epoch {epoch} is not newer than {:?}", it.last);
            Err(violation(text))
        }
        Ok(_) => Ok(()),
    }
}

fn read_as_process(folder: &str, owners: &str, seed: &str) -> Outcome {
    let stop = stop_at_end_of_input();
    let mut reader = Reader {
        folder: Path::new(folder),
        owners: owners.parse()?,
        random: Random(seed.parse()?),
        done: Done::default(),
    };
    while !stop.load(Ordering::Relaxed) {
        reader.visit(&stop)?;
        let Done {
            gets,
            followed,
            gone,
        } = std::mem::take(&mut reader.done);
        println!("{gets} {followed} {gone}");
    }
    Ok(())
}

// ---- the killing process

/// What all readers have done, including what must not happen.
#[derive(Default)]
struct Ledger {
    gets: AtomicU64,
    followed: AtomicU64,
    gone: AtomicU64,
    failures: Mutex<Vec<String>>,
}

impl Ledger {
    fn add(&self, done: Done) {
        self.gets.fetch_add(done.gets, Ordering::Relaxed);
        self.followed.fetch_add(done.followed, Ordering::Relaxed);
        self.gone.fetch_add(done.gone, Ordering::Relaxed);
    }

    fn fail(&self, what: String) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        failures.push(what);
    }

    fn check(&self) -> Outcome {
        let failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        match failures.first() {
            None => Ok(()),
            Some(first) => Err(first.clone().into()),
        }
    }
}

/// The other processes.
struct Peers {
    plan: Plan,
    folder: PathBuf,
    ledger: Arc<Ledger>,
    random: Random,
    children: Vec<Peer>,
}

struct Peer {
    child: Child,
    /// Thread that reads its output.
    lines: thread::JoinHandle<()>,
}

impl Peers {
    fn start(&mut self) -> Outcome {
        for index in 0..self.plan.peers {
            let peer = self.spawn(index)?;
            self.children.push(peer);
        }
        Ok(())
    }

    /// Starts the peer with this index: first come the owners.
    fn spawn(&mut self, index: usize) -> Outcome<Peer> {
        let owners = self.plan.owners();
        let seed = self.random.next().to_string();
        let mut command = Command::new(env::current_exe()?);
        if index < owners {
            let objects = self.plan.objects / owners;
            command.arg("owner").arg(&self.folder);
            command.args([index.to_string(), objects.to_string(), seed]);
        } else {
            // The last owner is this process.
            command.arg("reader").arg(&self.folder);
            command.args([(owners + 1).to_string(), seed]);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = child.stdout.take().ok_or("no output")?;
        let ledger = Arc::clone(&self.ledger);
        let lines = thread::spawn(move || {
            // The last line of a killed process may be incomplete.
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(done) = line.parse() {
                    ledger.add(done);
                }
            }
        });
        Ok(Peer { child, lines })
    }

    /// Kills peers at random, and starts each again.
    fn kill(&mut self, kills: usize, until: Deadline) -> Outcome {
        for kill in 0..kills {
            self.ledger.check()?;
            if until.has_passed() {
                return Err(format!("{kill} of {kills} kills were done in time").into());
            }
            let index = self.random.below(self.children.len());
            let new = self.spawn(index)?;
            let old = std::mem::replace(&mut self.children[index], new);
            end(old)?;
            thread::sleep(Duration::from_micros(self.random.below(50_000) as u64));
        }
        Ok(())
    }

    fn end(&mut self) -> Outcome {
        self.children.drain(..).try_for_each(end)
    }
}

/// Kills a process, unless it ended by itself, which must not happen.
fn end(mut peer: Peer) -> Outcome {
    if let Some(status) = peer.child.try_wait()? {
        return Err(format!("a peer ended by itself: {status}; see above").into());
    }
    peer.child.kill()?;
    peer.child.wait()?;
    let _ = peer.lines.join();
    Ok(())
}

impl Drop for Peers {
    fn drop(&mut self) {
        // The running ones see the end of their input.
        self.children.clear();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// What this process holds.
#[derive(Clone, Copy, Debug)]
struct Resources {
    descriptors: usize,
    threads: usize,
    /// Resident bytes.
    memory: u64,
}

impl std::fmt::Display for Resources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (descriptors, threads) = self.held();
        let mebibytes = self.memory >> 20;
        write!(
            f,
            "{descriptors} descriptors, {threads} threads, {mebibytes} MiB"
        )
    }
}

impl Resources {
    const fn held(&self) -> (usize, usize) {
        (self.descriptors, self.threads)
    }

    fn now() -> Outcome<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|it| it.strip_prefix("VmRSS:"));
        let resident = resident.and_then(|it| it.trim().strip_suffix(" kB"));
        Ok(Self {
            descriptors: fs::read_dir("/proc/self/fd")?.count(),
            threads: fs::read_dir("/proc/self/task")?.count(),
            memory: 1024 * resident.ok_or("no VmRSS")?.trim().parse::<u64>()?,
        })
    }
}

fn run(plan: Plan) -> Outcome {
    let until = Deadline::after(plan.limit);
    let folder = env::temp_dir().join(format!("gdr-object-soak-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    let ledger = Arc::new(Ledger::default());
    let mut peers = Peers {
        plan,
        folder: folder.clone(),
        ledger: Arc::clone(&ledger),
        random: Random(plan.seed),
        children: Vec::new(),
    };
    let owners = plan.owners();
    let mut owner = Owner::start(&folder, owners, plan.objects / owners, plan.seed)?;
    let address = owner.server.address();
    let (stop, stop_owner) = (AtomicBool::new(false), AtomicBool::new(false));
    let links = AtomicU64::new(0);
    let (before, after) = thread::scope(|scope| {
        scope.spawn(|| {
            while !stop_owner.load(Ordering::Relaxed) {
                if let Err(error) = owner.step() {
                    return ledger.fail(format!("the owner that lives: {error}"));
                }
                links.store(owner.server.stats().links, Ordering::Relaxed);
                thread::sleep(PAUSE);
            }
        });
        let follower = scope.spawn(|| {
            if let Err(error) = follow_all(address, &stop) {
                ledger.fail(format!("the follower that lives: {error}"));
            }
        });
        let killed = kill_in_two_parts(&mut peers, &links, until);
        stop.store(true, Ordering::Relaxed);
        // It waits for an epoch until it sees that.
        let _ = follower.join();
        stop_owner.store(true, Ordering::Relaxed);
        killed
    })?;
    ledger.check()?;
    println!(
        "after {} kills: {before}; after all: {after}",
        plan.kills / 10
    );
    if after.memory > before.memory + GROWTH {
        return Err("the memory of this process grew".into());
    }
    let count = |it: &AtomicU64| it.load(Ordering::Relaxed);
    println!(
        "{} kills of {} peers with {} objects: {} gets whole, {} epochs followed and none missed, \
         {} visits ended with their owner",
        plan.kills,
        plan.peers,
        plan.objects,
        count(&ledger.gets),
        count(&ledger.followed),
        count(&ledger.gone),
    );
    Ok(())
}

/// Returns what this process holds after the first tenth of the kills, and after all.
fn kill_in_two_parts(
    peers: &mut Peers,
    links: &AtomicU64,
    until: Deadline,
) -> Outcome<(Resources, Resources)> {
    let first = peers.plan.kills / 10;
    kill_beside_a_reader(peers, first, until)?;
    let before = settle(links, None, until)?;
    kill_beside_a_reader(peers, peers.plan.kills - first, until)?;
    Ok((before, settle(links, Some(before), until)?))
}

/// Starts the peers, kills some, and ends them; this process reads meanwhile, too.
fn kill_beside_a_reader(peers: &mut Peers, kills: usize, until: Deadline) -> Outcome {
    let (ledger, stop) = (Arc::clone(&peers.ledger), AtomicBool::new(false));
    let folder = peers.folder.clone();
    let mut reader = Reader {
        folder: &folder,
        owners: peers.plan.owners() + 1,
        random: Random(peers.random.next()),
        done: Done::default(),
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                if let Err(error) = reader.visit(&stop) {
                    return ledger.fail(format!("the reader that lives: {error}"));
                }
                ledger.add(std::mem::take(&mut reader.done));
            }
        });
        let killed = peers.start().and_then(|()| peers.kill(kills, until));
        stop.store(true, Ordering::Relaxed);
        killed
    })?;
    peers.end()
}

/// Waits until only the follower's link is left and the threads of the others have ended; with `before`, until there
/// are no more descriptors and threads than then.
fn settle(links: &AtomicU64, before: Option<Resources>, until: Deadline) -> Outcome<Resources> {
    let mut last = Resources::now()?;
    while !until.has_passed() {
        thread::sleep(Duration::from_millis(300));
        let now = Resources::now()?;
        let is_still = now.held() == last.held() && links.load(Ordering::Relaxed) == 1;
        let is_as_before = before.is_none_or(|before| {
            now.descriptors <= before.descriptors && now.threads <= before.threads
        });
        if is_still && is_as_before {
            return Ok(now);
        }
        last = now;
    }
    Err(format!("not all is released: {last}, and before {before:?}").into())
}

/// Follows the ring of the surviving owner, alongside followers that are killed.
fn follow_all(owner: SocketAddr, stop: &AtomicBool) -> Outcome {
    let link = Link::connect(owner, LinkOptions::new(Security::Loopback), deadline())?;
    let generation = link.generation(deadline())?.get();
    let ring = link.open(ObjectName::new(RING)?, deadline())?;
    let memory = link.host_memory(ring.info().bytes)?;
    let mut follower = ring.follow(deadline())?;
    while !stop.load(Ordering::Relaxed) {
        next(&mut follower, &memory, generation)?;
    }
    Ok(())
}
