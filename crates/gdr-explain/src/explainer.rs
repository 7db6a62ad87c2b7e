//! Reads a text and ranks the causes that it speaks of.

use std::cmp::Reverse;
use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Read};
use std::ops::Range;
use std::sync::{LazyLock, OnceLock};

use gdr_node::kernel_log::Growing;
use memchr::memmem::{self, Finder};

use crate::arguments::without_arguments;
use crate::channel::{self, Channel, Transport};
use crate::clean::{clean, excerpt, has_log_prefix, unquoted};
use crate::facts::{FACTS, Fact};
use crate::lines::{Line, Lines};
use crate::matcher::{Candidates, Hits, Matcher};
use crate::mention::{Speech, is_zero_counter, speech};
use crate::parts::{self, Inference, Parts};
use crate::signs::{self, Sign};
use crate::usage::{GpuDirect, Usage};
use crate::{Cause, Explanation, Match, Pattern, Strength, causes};

/// Within how many lines what belongs together stands.
const TOGETHER: usize = 60;
/// The longest line that may be the beginning or the rest of a wrapped one, in bytes.
const WRAPPED: usize = 400;
/// From this length on a line may have been cut within a word.
const FULL_WIDTH: usize = 60;
/// From this length on a line may have been wrapped; shorter ones are taken for the first part of
/// what they say only where that has one meaning.
const WORTH_WRAPPING: usize = 50;
/// Within how many lines of what a pattern knows nothing is inferred.
const NEAR: usize = 2;
/// How much of a text is read at once.
const CHUNK: usize = 1 << 16;

/// The expression by which lines of channels are found; what they say is read without it.
const CHANNEL: &str = r" via (net|p2p|shm|collnet)";

/// What a text says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The causes that it speaks of, likeliest first.
    pub causes: Vec<Explanation>,
    /// Whether it shows GPUDirect RDMA at work.
    pub gpudirect: GpuDirect,
}

/// What an expression is for.
#[derive(Clone, Copy, Debug)]
enum Role {
    Channel,
    /// Says what lines after it are about.
    Context,
    /// Says that other expressions do not fit its line.
    Exception,
    Cause {
        cause: usize,
        pattern: &'static Pattern,
        after: Option<usize>,
        unless: Option<usize>,
    },
    Sign {
        sign: &'static Sign,
        after: Option<usize>,
    },
    /// Says something about the machine.
    Fact(Fact),
    /// Names an operation, by its place in [`parts::WORDS`].
    Operation(usize),
    /// Says that something went wrong.
    Failure,
}

#[derive(Debug)]
struct Table {
    matcher: Matcher,
    roles: Vec<Role>,
    causes: Vec<&'static Cause>,
    /// What channels through host memory, and over sockets, speak of.
    staged: Option<usize>,
    sockets: Option<usize>,
}

impl Table {
    fn is_failure(&self, place: usize) -> bool {
        matches!(self.roles[place], Role::Failure)
    }

    /// Returns whether a line with these candidates may name an operation, and that it failed.
    fn may_be_inferred(&self, places: &[usize]) -> bool {
        let mut last = places.iter().rev();
        last.next().is_some_and(|place| self.is_failure(*place))
            && (last.next()).is_some_and(|place| matches!(self.roles[*place], Role::Operation(_)))
    }
}

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(Table::new)
}

impl Table {
    fn new() -> Self {
        let causes: Vec<&'static Cause> = causes().collect();
        let mut expressions = vec![CHANNEL];
        let mut roles = vec![Role::Channel];
        let mut contexts: Vec<(&'static str, usize)> = Vec::new();
        let patterns = || {
            let with_cause = |(place, cause): (usize, &&'static Cause)| {
                cause.patterns.iter().map(move |pattern| (place, pattern))
            };
            causes.iter().enumerate().flat_map(with_cause)
        };
        let afters = patterns().filter_map(|(_, pattern)| pattern.after);
        for text in afters.chain(signs::SIGNS.iter().filter_map(|sign| sign.after)) {
            if contexts.iter().all(|(known, _)| *known != text) {
                contexts.push((text, expressions.len()));
                expressions.push(text);
                roles.push(Role::Context);
            }
        }
        let mut exceptions: Vec<(&'static str, usize)> = Vec::new();
        for text in patterns().filter_map(|(_, pattern)| pattern.unless) {
            if exceptions.iter().all(|(known, _)| *known != text) {
                exceptions.push((text, expressions.len()));
                expressions.push(text);
                roles.push(Role::Exception);
            }
        }
        let exception_of = |unless: Option<&'static str>| {
            let unless = unless?;
            let known = exceptions.iter().find(|(known, _)| *known == unless);
            known.map(|(_, place)| *place)
        };
        let place_of = |after: Option<&'static str>| {
            let after = after?;
            let known = contexts.iter().find(|(known, _)| *known == after);
            known.map(|(_, place)| *place)
        };
        for (cause, pattern) in patterns() {
            expressions.push(pattern.text);
            roles.push(Role::Cause {
                cause,
                pattern,
                after: place_of(pattern.after),
                unless: exception_of(pattern.unless),
            });
        }
        for sign in signs::SIGNS {
            expressions.push(sign.text);
            roles.push(Role::Sign {
                sign,
                after: place_of(sign.after),
            });
        }
        for (fact, text) in FACTS {
            expressions.push(text);
            roles.push(Role::Fact(*fact));
        }
        for (place, words) in parts::WORDS.iter().enumerate() {
            expressions.push(words.text);
            roles.push(Role::Operation(place));
        }
        // The last, so that it is quickly seen whether a line has it.
        expressions.push(parts::FAILURE);
        roles.push(Role::Failure);
        let of_id = |id| causes.iter().position(|cause: &&Cause| cause.id == id);
        Self {
            matcher: Matcher::new(expressions),
            roles,
            staged: of_id("gdr-unused"),
            sockets: of_id("no-rdma-device"),
            causes,
        }
    }
}

/// The causes that a text speaks of, likeliest first: see [`Explainer`].
pub fn explain(text: &str) -> Vec<Explanation> {
    let mut explainer = Explainer::new();
    explainer.push(text.as_bytes());
    explainer.finish().causes
}

/// What a text of any length says, in bounded memory.
pub fn read(mut text: impl Read) -> io::Result<Answer> {
    let mut explainer = Explainer::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match text.read(&mut chunk) {
            Ok(0) => return Ok(explainer.finish()),
            Ok(length) => explainer.push(&chunk[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Reads a text piece by piece.
///
/// On one line only the surest causes count. A cause with a surer line comes first; of equals that
/// which is spoken of first, for later errors often follow from earlier ones. What follows from
/// other errors, and what does no harm, comes last.
#[derive(Debug)]
pub struct Explainer {
    lines: Lines,
    state: State,
}

impl Default for Explainer {
    fn default() -> Self {
        Self::new()
    }
}

impl Explainer {
    /// Nothing is read yet.
    pub fn new() -> Self {
        Self::with_table(table())
    }

    fn with_table(table: &'static Table) -> Self {
        Self {
            lines: Lines::new(),
            state: State::new(table),
        }
    }

    /// One that tries every expression on every line.
    #[cfg(test)]
    pub(crate) fn unfiltered() -> Self {
        static TABLE: OnceLock<Table> = OnceLock::new();
        Self::with_table(TABLE.get_or_init(|| {
            let mut table = Table::new();
            table.matcher.try_all();
            table
        }))
    }

    /// Reads on.
    pub fn push(&mut self, text: &[u8]) {
        let state = &mut self.state;
        self.lines.push(text, &mut |line| state.line(line));
    }

    /// What all of it says.
    pub fn finish(self) -> Answer {
        let Self { lines, mut state } = self;
        lines.finish(&mut |line| state.line(line));
        state.finish()
    }
}

/// A line, kept for what the next ones may add to it.
#[derive(Debug, Default)]
struct Part {
    number: usize,
    text: Vec<u8>,
    hits: Hits,
    /// Whether it alone may name what failed.
    is_complete: bool,
}

/// What the parts of a line say, until it is known that nothing near it says more.
#[derive(Debug)]
struct Supposition {
    number: usize,
    line: Vec<u8>,
    at: usize,
    inference: Inference,
}

/// The lines of a record of the kernel, which may go on in the next one.
#[derive(Debug, Default)]
struct Record {
    /// The number of its first line.
    number: usize,
    lines: Vec<Vec<u8>>,
}

impl Record {
    /// Returns whether it is one that NVIDIA's driver prints in several lines.
    fn is_of_gpu(&self) -> bool {
        static OPENING: LazyLock<Finder<'static>> =
            LazyLock::new(|| Finder::new("NVRM: The NVIDIA"));
        let first = self.lines.first();
        first.is_some_and(|line| OPENING.find(line).is_some())
    }

    fn begin(&mut self, number: usize, line: &[u8]) {
        self.number = number;
        self.lines.truncate(1);
        match self.lines.first_mut() {
            Some(first) => {
                first.clear();
                first.extend_from_slice(line);
            }
            None => self.lines.push(line.to_vec()),
        }
    }
}

#[derive(Debug)]
struct State {
    table: &'static Table,
    candidates: Candidates,
    /// The literals of the line at hand.
    hits: Hits,
    cleaned: Vec<u8>,
    joined: Vec<u8>,
    joined_hits: Hits,
    /// A line without the arguments of its calls.
    shortened: Vec<u8>,
    /// Whether the line at hand alone may name what failed.
    is_complete: bool,
    found: Vec<Option<Explanation>>,
    usage: Usage,
    /// A channel whose line may go on in the next one.
    open_channel: Option<(Channel, usize, Vec<u8>, usize)>,
    /// The line on which each expression last matched; 0 is never.
    matched_on: Vec<usize>,
    /// Lines that the one at hand may be the rest of, and how many there are.
    before: [Part; 2],
    parts: usize,
    record: Record,
    /// What the line at hand says, for the surest of it to be kept.
    spoken: Vec<(usize, Strength, usize)>,
    /// Where something of each strength was said last.
    said: [(Strength, usize); 3],
    /// What the text says about its machine.
    facts: BTreeSet<Fact>,
    /// What is supposed of the last lines, at most one thing of each.
    supposed: VecDeque<Supposition>,
}

impl State {
    fn new(table: &'static Table) -> Self {
        Self {
            table,
            candidates: Candidates::default(),
            hits: Hits::default(),
            cleaned: Vec::new(),
            joined: Vec::new(),
            joined_hits: Hits::default(),
            shortened: Vec::new(),
            is_complete: false,
            found: Vec::new(),
            usage: Usage::default(),
            open_channel: None,
            matched_on: vec![0; table.roles.len()],
            before: Default::default(),
            parts: 0,
            record: Record::default(),
            spoken: Vec::new(),
            said: [Strength::Weak, Strength::Likely, Strength::Sure].map(|strength| (strength, 0)),
            facts: BTreeSet::new(),
            supposed: VecDeque::new(),
        }
    }

    fn line(&mut self, line: Line<'_>) {
        let mut rest = line.bytes;
        // A logger that wraps lines up as JSON writes line ends as `\n`.
        if rest.contains(&b'\\') {
            while let Some(at) = memmem::find(rest, br"\n") {
                self.statement(line.number, &rest[..at]);
                rest = &rest[at + 2..];
            }
        }
        self.statement(line.number, rest);
    }

    fn statement(&mut self, number: usize, printed: &[u8]) {
        let line = unquoted(printed.trim_ascii());
        self.settle(number);
        if let Some((mut channel, on, first, at)) = self.open_channel.take() {
            if channel::continues_with_gpudirect(line) {
                channel.transport = Transport::GpuDirect;
            }
            self.use_channel(channel, on, &first, at);
        }
        let mut buffer = std::mem::take(&mut self.cleaned);
        let text = clean(line, &mut buffer);
        self.look_at(number, text);
        self.look_at_calls(number, text, Strength::Weak);
        if text.is_empty() || text.len() > WRAPPED {
            self.parts = 0;
            self.record.lines.clear();
        } else if self.look_at_record(number, printed) {
            self.parts = 0;
        } else {
            self.look_at_wrapped(number, text);
        }
        self.cleaned = buffer;
    }

    /// What one line says.
    fn look_at(&mut self, number: usize, line: &[u8]) {
        let table = self.table;
        self.hits.clear();
        table.matcher.search(line, &mut self.hits);
        let mut candidates = std::mem::take(&mut self.candidates);
        let places = candidates.of(&table.matcher, &self.hits);
        for place in places {
            match table.roles[*place] {
                Role::Channel => {
                    if let Some((channel, at)) = channel::parse(line) {
                        self.matched_on[*place] = number;
                        self.channel(channel, number, line, at);
                    }
                }
                Role::Context if table.matcher.find(*place, line).is_some() => {
                    self.matched_on[*place] = number;
                }
                Role::Fact(fact) if table.matcher.find(*place, line).is_some() => {
                    self.facts.insert(fact);
                }
                _ => {}
            }
        }
        self.try_patterns(places, number, line, Strength::Weak);
        self.is_complete = table.may_be_inferred(places) && self.suppose(places, number, line);
        self.candidates = candidates;
        self.keep_spoken(number, line);
    }

    /// What a line says without the arguments of the calls in it.
    fn look_at_calls(&mut self, number: usize, line: &[u8], least: Strength) {
        let mut shortened = std::mem::take(&mut self.shortened);
        if without_arguments(line, &mut shortened) {
            let mut hits = Hits::default();
            self.table.matcher.search(&shortened, &mut hits);
            self.look_at_joined(number, &shortened, &hits, least);
        }
        self.shortened = shortened;
    }

    fn channel(&mut self, channel: Channel, number: usize, line: &[u8], at: usize) {
        if channel.open {
            self.open_channel = Some((channel, number, line.to_vec(), at));
        } else {
            self.use_channel(channel, number, line, at);
        }
    }

    fn use_channel(&mut self, channel: Channel, number: usize, line: &[u8], at: usize) {
        self.usage.channel(channel, number, line, at);
        let table = self.table;
        let cause = match channel.transport {
            Transport::HostMemory => table.staged,
            Transport::Socket => table.sockets,
            Transport::GpuDirect | Transport::SameNode => None,
        };
        if let Some(cause) = cause {
            self.keep_cause(cause, number, line, Strength::Likely, at, None);
        }
    }

    fn keep_cause(
        &mut self,
        cause: usize,
        number: usize,
        line: &[u8],
        strength: Strength,
        at: usize,
        parts: Option<Parts>,
    ) {
        let table = self.table;
        self.found.resize_with(table.causes.len(), || None);
        let explanation = self.found[cause].get_or_insert_with(|| Explanation {
            cause: table.causes[cause],
            matches: Vec::new(),
            details: Vec::new(),
            lines: 0,
            kind: table.causes[cause].kind,
            because: Vec::new(),
            remedies: Vec::new(),
        });
        explanation.add(number, line, strength, at, parts);
    }

    /// What a record of the kernel says that goes on in this line; returns whether one does.
    fn look_at_record(&mut self, number: usize, printed: &[u8]) -> bool {
        let is_escaped = printed.contains(&b'\\') && memmem::find(printed, br"\x0a").is_some();
        let may_go_on = printed.starts_with(b" ")
            || printed.starts_with(b"\t")
            || printed.starts_with(b"NVRM:")
            || self.record.is_of_gpu() && names_driver(printed);
        if !may_go_on && !is_escaped {
            self.record.begin(number, printed);
            return false;
        }
        let next = String::from_utf8_lossy(printed);
        let lines: Vec<_> = (self.record.lines.iter())
            .map(|line| String::from_utf8_lossy(line))
            .collect();
        let mut record = Growing::new(lines.first().map_or("", |line| &**line));
        for line in lines.iter().skip(1) {
            record.push(line);
        }
        let goes_on = record.push(&next);
        if !goes_on {
            record = Growing::new(&next);
        }
        let text = (goes_on || is_escaped).then(|| record.text().to_owned());
        match goes_on {
            true => self.record.lines.push(printed.to_vec()),
            false => self.record.begin(number, printed),
        }
        if let Some(text) = text {
            self.look_at_text(self.record.number, text.as_bytes());
        }
        goes_on
    }

    /// What a text of several lines says.
    fn look_at_text(&mut self, first: usize, text: &[u8]) {
        let mut hits = Hits::default();
        self.table.matcher.search(text, &mut hits);
        self.look_at_joined(first, text, &hits, Strength::Weak);
    }

    /// What a line says together with those before it that it may be the rest of.
    fn look_at_wrapped(&mut self, number: usize, line: &[u8]) {
        if has_log_prefix(line) {
            self.parts = 0;
        }
        let table = self.table;
        let mut joined = std::mem::take(&mut self.joined);
        let mut hits = std::mem::take(&mut self.joined_hits);
        joined.clear();
        for part in &self.before[..self.parts] {
            joined.extend_from_slice(&part.text);
            joined.push(b' ');
        }
        joined.extend_from_slice(line);
        // What each line contains is known; only where they meet is searched.
        hits.clear();
        hits.add(&self.hits);
        let mut begins = joined.len() - line.len();
        for first in (0..self.parts).rev() {
            let parts = &self.before[first..self.parts];
            let start = parts[0].number;
            let cut = parts[0].text.len();
            let least = if parts.iter().all(|part| part.text.len() >= WORTH_WRAPPING) {
                Strength::Weak
            } else {
                Strength::Sure
            };
            let within_a_word = parts.len() == 1 && cut >= FULL_WIDTH;
            hits.add(&parts[0].hits);
            begins -= cut + 1;
            table
                .matcher
                .search_around(&joined, begins + cut, &mut hits);
            self.look_at_joined(start, &joined[begins..], &hits, least);
            self.look_at_calls(start, &joined[begins..], least);
            if within_a_word {
                self.look_at_cut_word(first, line, least);
            }
        }
        self.joined = joined;
        self.joined_hits = hits;
        if self.parts == self.before.len() {
            self.before.rotate_left(1);
            self.parts -= 1;
        }
        let part = &mut self.before[self.parts];
        part.number = number;
        part.text.clear();
        part.text.extend_from_slice(line);
        part.hits.clear();
        part.hits.add(&self.hits);
        part.is_complete = self.is_complete;
        self.parts += 1;
    }

    /// What a line says as the rest of one that a narrow terminal cut within a word.
    fn look_at_cut_word(&mut self, first: usize, line: &[u8], least: Strength) {
        let Part {
            number, text, hits, ..
        } = &self.before[first];
        let (start, cut) = (*number, text.len());
        let whole = [text, line].concat();
        let mut hits = hits.clone();
        hits.add(&self.hits);
        self.table.matcher.search_around(&whole, cut, &mut hits);
        self.look_at_joined(start, &whole, &hits, least);
    }

    /// What lines say that none of them says alone, by patterns that are sure enough.
    fn look_at_joined(&mut self, start: usize, line: &[u8], hits: &Hits, least: Strength) {
        let table = self.table;
        let mut candidates = std::mem::take(&mut self.candidates);
        let places = candidates.of(&table.matcher, hits);
        for place in places {
            if self.matched_on[*place] < start
                && matches!(table.roles[*place], Role::Channel)
                && let Some((channel, at)) = channel::parse(line)
            {
                self.matched_on[*place] = start;
                self.channel(channel, start, line, at);
            }
        }
        self.try_patterns(places, start, line, least);
        let is_new =
            !self.is_complete && self.before[..self.parts].iter().all(|it| !it.is_complete);
        if least == Strength::Weak && is_new && table.may_be_inferred(places) {
            self.suppose(places, start, line);
        }
        self.candidates = candidates;
        self.keep_spoken(start, line);
    }

    /// Keeps what the parts of a line say that no pattern knows. Returns whether it names what failed.
    fn suppose(&mut self, places: &[usize], number: usize, line: &[u8]) -> bool {
        let table = self.table;
        let Some(failure) = (places.last()).filter(|place| table.is_failure(**place)) else {
            return false;
        };
        // Lines of a difference are source code.
        if !self.spoken.is_empty()
            || line.starts_with(b"+ ")
            || memmem::find(line, b" +  ").is_some()
            || table.matcher.find(*failure, line).is_none()
        {
            return false;
        }
        let mut names = false;
        let known = self.supposed.iter().position(|it| it.number == number);
        for place in places {
            let Role::Operation(words) = table.roles[*place] else {
                continue;
            };
            let Some(found) = table.matcher.find(*place, line) else {
                continue;
            };
            names = true;
            let Some(mut inference) = parts::infer(words, line) else {
                continue;
            };
            match speech(line, &found) {
                Speech::Report => {}
                Speech::Mention if inference.strength > Strength::Weak => {
                    inference.strength = Strength::Weak;
                }
                Speech::Mention | Speech::Absent => continue,
            }
            let supposition = Supposition {
                number,
                line: line.to_vec(),
                at: found.start,
                inference,
            };
            match known.and_then(|known| self.supposed.get_mut(known)) {
                None => self.supposed.push_back(supposition),
                // Together with the next line it says more.
                Some(known) if known.inference.strength < supposition.inference.strength => {
                    *known = supposition;
                }
                Some(_) => {}
            }
            break;
        }
        names
    }

    /// Takes for said what was supposed of lines that end [`NEAR`] before this one, where nothing near
    /// them said more.
    fn settle(&mut self, number: usize) {
        while let Some(oldest) = self.supposed.front()
            && oldest.number + NEAR < number
        {
            let Some(supposition) = self.supposed.pop_front() else {
                return;
            };
            let near = supposition.number.saturating_sub(NEAR);
            if (self.said.iter()).any(|(_, on)| *on > 0 && *on >= near) {
                continue;
            }
            let Supposition {
                number,
                line,
                at,
                inference,
            } = supposition;
            for (rank, id) in inference.causes.iter().enumerate() {
                let Some(cause) = self.table.causes.iter().position(|cause| cause.id == *id) else {
                    continue;
                };
                let strength = match rank {
                    0 => inference.strength,
                    _ => Strength::Weak,
                };
                self.keep_cause(cause, number, &line, strength, at, Some(inference.parts));
            }
        }
    }

    /// Tries the patterns at `places` that did not match since line `start`, the surest first, until
    /// one spoke, there or in one of the lines alone: of what is less sure nothing is kept.
    fn try_patterns(&mut self, places: &[usize], start: usize, line: &[u8], least: Strength) {
        let table = self.table;
        for place in places {
            if matches!(table.roles[*place], Role::Sign { .. }) {
                self.try_pattern(*place, start, line);
            }
        }
        for strength in [Strength::Sure, Strength::Likely, Strength::Weak] {
            if strength < least {
                return;
            }
            let surer = |other: &Strength| *other > strength;
            if self.spoken.iter().any(|(_, spoken, _)| surer(spoken))
                || (self.said.iter()).any(|(said, on)| *on >= start && surer(said))
            {
                return;
            }
            for place in places {
                if let Role::Cause { pattern, .. } = table.roles[*place]
                    && pattern.strength == strength
                {
                    self.try_pattern(*place, start, line);
                }
            }
        }
    }

    fn try_pattern(&mut self, place: usize, number: usize, line: &[u8]) {
        let table = self.table;
        let after = match table.roles[place] {
            Role::Cause { after, .. } | Role::Sign { after, .. } => after,
            Role::Channel
            | Role::Context
            | Role::Exception
            | Role::Fact(_)
            | Role::Operation(_)
            | Role::Failure => return,
        };
        if self.matched_on[place] >= number
            || after.is_some_and(|context| !together(Some(self.matched_on[context]), number))
        {
            return;
        }
        let Some(found) = table.matcher.find(place, line) else {
            return;
        };
        if let Role::Cause { unless, .. } = table.roles[place]
            && unless.is_some_and(|exception| table.matcher.find(exception, line).is_some())
        {
            return;
        }
        self.matched_on[place] = number;
        let at = found.start;
        match table.roles[place] {
            Role::Cause { cause, pattern, .. } => match self.speech(cause, pattern, line, &found) {
                Speech::Report => self.spoken.push((cause, pattern.strength, at)),
                Speech::Mention if pattern.strength > Strength::Weak => {
                    self.spoken.push((cause, Strength::Weak, at));
                }
                // What says little in a report says nothing elsewhere.
                Speech::Mention | Speech::Absent => {}
            },
            Role::Sign { sign, .. } => self.usage.sign(sign.proof, number, line, at),
            Role::Channel
            | Role::Context
            | Role::Exception
            | Role::Fact(_)
            | Role::Operation(_)
            | Role::Failure => {}
        }
    }

    /// What a line does with the words at `range`. In a storm of messages that are reported and kept
    /// already, only their number matters.
    fn speech(&self, cause: usize, pattern: &Pattern, line: &[u8], range: &Range<usize>) -> Speech {
        let known = self.found.get(cause).and_then(Option::as_ref);
        let is_certain = known.is_some_and(|it| {
            it.matches.len() == Explanation::MAX_MATCHES && it.strength() >= pattern.strength
        });
        match is_certain {
            true if is_zero_counter(line, range) => Speech::Absent,
            true => Speech::Report,
            false => speech(line, range),
        }
    }

    /// Keeps the surest of what a line says.
    fn keep_spoken(&mut self, number: usize, line: &[u8]) {
        let Some(surest) = self.spoken.iter().map(|(_, strength, _)| *strength).max() else {
            return;
        };
        for (said, on) in &mut self.said {
            if *said == surest {
                *on = number.max(*on);
            }
        }
        let mut spoken = std::mem::take(&mut self.spoken);
        spoken.sort_unstable();
        spoken.dedup_by_key(|(cause, strength, _)| (*cause, *strength));
        for (cause, strength, at) in spoken.drain(..) {
            if strength == surest {
                self.keep_cause(cause, number, line, strength, at, None);
            }
        }
        self.spoken = spoken;
    }

    fn finish(mut self) -> Answer {
        if let Some((channel, number, line, at)) = self.open_channel.take() {
            self.use_channel(channel, number, &line, at);
        }
        self.settle(usize::MAX);
        let mut causes: Vec<Explanation> = self.found.into_iter().flatten().collect();
        let order = |it: &Explanation| {
            let first = it.matches.first();
            let parts = first.and_then(|first| first.parts);
            parts.map(|parts| parts::rank(parts, it.cause.id))
        };
        for explanation in &mut causes {
            explanation.consider(&self.facts);
        }
        causes.sort_by_key(|it| {
            (
                it.kind,
                Reverse(it.strength()),
                it.matches.first().map(|first| first.line),
                order(it),
                Reverse(it.lines),
            )
        });
        let gpudirect = self.usage.finish();
        Answer { causes, gpudirect }
    }
}

/// Returns whether NVIDIA's driver is named, as before the lines that it prints.
fn names_driver(line: &[u8]) -> bool {
    line.split(|byte| *byte == b':')
        .any(|part| part.ends_with(b"NVRM"))
}

/// Returns whether what matched on a line, which is 0 where it never did, belongs to what stands
/// here.
fn together(on: Option<usize>, number: usize) -> bool {
    on.is_some_and(|on| on != 0 && number.saturating_sub(on) <= TOGETHER)
}

impl Explanation {
    /// Counts a line, and keeps it where it is among the first, or surer than all that are kept.
    fn add(
        &mut self,
        number: usize,
        line: &[u8],
        strength: Strength,
        at: usize,
        parts: Option<Parts>,
    ) {
        if let Some(last) = self.matches.last_mut().filter(|last| last.line == number) {
            last.strength = last.strength.max(strength);
            return;
        }
        self.lines += 1;
        if self.details.len() < Self::MAX_MATCHES
            && let Some(detail) = self.cause.detail.and_then(|detail| detail(line))
            && !self.details.contains(&detail)
        {
            self.details.push(detail);
        }
        let surer = self.matches.iter().all(|it| it.strength < strength);
        if self.matches.len() == Self::MAX_MATCHES {
            if !surer {
                return;
            }
            self.matches.pop();
        }
        self.matches.push(Match {
            line: number,
            text: excerpt(line, at),
            strength,
            parts,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_LINE;

    fn ids(text: &str) -> Vec<&'static str> {
        explain(text).iter().map(|it| it.cause.id).collect()
    }

    #[test]
    fn every_pattern_is_a_regular_expression_that_has_a_literal() {
        assert_eq!(table().matcher.faults(), [""; 0]);
        // Those without one are tried only where something else has stood before.
        let roles = table().matcher.without_literals();
        let roles = roles.into_iter().map(|place| table().roles[place]);
        for role in roles {
            assert!(
                matches!(role, Role::Sign { after: Some(_), .. }),
                "{role:?}"
            );
        }
    }

    #[test]
    fn a_record_of_the_kernel_is_one_text_however_its_lines_are_printed() {
        const REST: [&str; 2] = [
            "(PCI ID: 10de:26b5) installed in this system has",
            "fallen off the bus and is not responding to commands.",
        ];
        // No line of it says what has happened to whom.
        let first = "NVRM: The NVIDIA GPU 0000:b3:00.0";
        let of_driver = format!("{first}\nNVRM: {}\nNVRM: {}", REST[0], REST[1]);
        let timed = of_driver.replace("NVRM", "[ 43.308145] NVRM");
        let indented = format!("[ 43.308145] {first}\n    {}\n    {}", REST[0], REST[1]);
        let escaped = format!("3,9,43308145,-;{first}\\x0a{}\\x0a{}", REST[0], REST[1]);
        for text in [of_driver, timed, indented, escaped] {
            let found = explain(&text);
            assert_eq!(found[0].cause.id, "gpu-lost", "{text}");
            // The doctor sees the same record.
            let records: Vec<_> = gdr_node::kernel_log::records(&text).collect();
            assert_eq!(records.len(), 1, "{text}: {records:?}");
        }
    }

    #[test]
    fn flushed_work_comes_after_what_failed() {
        let found = ids(
            "NET/IB : Got completion from peer 10.0.0.2<4791> with status=5 opcode=0 len=0 vendor err 249\n\
             NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=1 len=0 vendor err 129\n",
        );
        assert_eq!(found, ["transport-timeout", "flush-error"]);
    }

    #[test]
    fn a_log_of_nothing_in_particular_is_not_explained() {
        assert_eq!(ids("all is well\n\n12345 GB/s"), [""; 0]);
    }

    #[test]
    fn the_end_of_a_long_line_is_read_and_a_storm_is_counted() {
        let storm = "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context\n";
        let text = format!("{} {storm}{}", "x".repeat(MAX_LINE * 4), storm.repeat(999));
        let found = explain(&text);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].lines, 1000);
        assert_eq!(found[0].matches.len(), Explanation::MAX_MATCHES);
        assert_eq!(found[0].matches[0].line, 1);
        assert!(found[0].matches[0].text.len() < 1000);
    }

    #[test]
    fn text_in_pieces_says_what_it_says_in_one() {
        let text = "NCCL WARN Call to ibv_reg_mr failed with error Bad address\n".repeat(3);
        let whole = explain(&text);
        let mut explainer = Explainer::new();
        for byte in text.as_bytes() {
            explainer.push(&[*byte]);
        }
        let pieces = explainer.finish().causes;
        assert_eq!(whole.len(), pieces.len());
        assert_eq!(whole[0].matches, pieces[0].matches);
        assert_eq!(
            read(text.as_bytes()).unwrap().causes[0].matches,
            whole[0].matches
        );
    }
}
