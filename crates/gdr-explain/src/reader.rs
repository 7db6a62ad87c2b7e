//! Reads a text line by line.

use std::collections::BTreeSet;
use std::ops::Range;

use memchr::{memchr, memmem};

use crate::arguments::without_arguments;
use crate::channel::{self, Channel, Transport};
use crate::clean::{clean, has_log_prefix, unquoted};
use crate::facts::Fact;
use crate::found::{Found, Mark};
use crate::lines::Line;
use crate::matcher::{Candidates, Hits};
use crate::mention::{Speech, is_zero_counter, speech};
use crate::previous::{Part, Previous};
use crate::record::{Continuation, Record};
use crate::suppositions::{NEAR, Supposition, Suppositions};
use crate::table::{Role, Table};
use crate::usage::Usage;
use crate::{Answer, Strength};

/// Within how many lines what belongs together stands.
const TOGETHER: usize = 60;
/// The longest line that may be the beginning or the rest of a wrapped one, in bytes.
const WRAPPED: usize = 400;
/// From this length on a line may have been cut within a word.
const FULL_WIDTH: usize = 60;
/// From this length on a line may have been wrapped; shorter ones are taken for the first part of
/// what they say only where that has one meaning.
const WORTH_WRAPPING: usize = 50;

/// What was read so far.
#[derive(Debug)]
pub(crate) struct Reader {
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
    found: Found,
    usage: Usage,
    /// A channel whose line may go on in the next one.
    open_channel: Option<(Channel, usize, Vec<u8>, usize)>,
    /// The line on which each expression last matched; 0 is never.
    matched_on: Vec<usize>,
    previous: Previous,
    record: Record,
    /// What the text says about its machine.
    facts: BTreeSet<Fact>,
    supposed: Suppositions,
}

impl Reader {
    /// Nothing is read yet.
    pub(crate) fn new(table: &'static Table) -> Self {
        Self {
            table,
            candidates: Candidates::default(),
            hits: Hits::default(),
            cleaned: Vec::new(),
            joined: Vec::new(),
            joined_hits: Hits::default(),
            shortened: Vec::new(),
            is_complete: false,
            found: Found::new(&table.causes),
            usage: Usage::default(),
            open_channel: None,
            matched_on: vec![0; table.roles.len()],
            previous: Previous::default(),
            record: Record::default(),
            facts: BTreeSet::new(),
            supposed: Suppositions::default(),
        }
    }

    /// Reads a line.
    pub(crate) fn line(&mut self, line: Line<'_>) {
        let mut rest = line.bytes;
        // A logger that wraps lines up as JSON writes line ends as `\n`.
        if memchr(b'\\', rest).is_some() {
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
            self.previous.clear();
            self.record.end();
        } else if self.look_at_record(number, printed) {
            self.previous.clear();
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
        self.is_complete = table.may_be_inferred(places)
            && !self.found.is_spoken()
            && self.supposed.suppose(table, places, number, line);
        self.candidates = candidates;
        self.found.keep_spoken(number, line);
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
            let mark = Mark {
                number,
                line,
                at,
                strength: Strength::Likely,
                parts: None,
            };
            self.found.keep(cause, mark);
        }
    }

    /// Reads what a record of the kernel says if this line continues one; returns whether it does.
    fn look_at_record(&mut self, number: usize, printed: &[u8]) -> bool {
        match self.record.push(number, printed) {
            Continuation::None => false,
            Continuation::Escaped(text) => {
                self.look_at_text(self.record.number(), text.as_bytes());
                false
            }
            Continuation::Rest(text) => {
                self.look_at_text(self.record.number(), text.as_bytes());
                true
            }
        }
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
            self.previous.clear();
        }
        let table = self.table;
        let mut joined = std::mem::take(&mut self.joined);
        let mut hits = std::mem::take(&mut self.joined_hits);
        joined.clear();
        for part in self.previous.lines() {
            joined.extend_from_slice(&part.text);
            joined.push(b' ');
        }
        joined.extend_from_slice(line);
        // What each line contains is known; only where they meet is searched.
        hits.clone_from(&self.hits);
        let mut begins = joined.len() - line.len();
        for first in (0..self.previous.lines().len()).rev() {
            let parts = &self.previous.lines()[first..];
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
        let part = self.previous.push(number, line, &self.hits);
        part.is_complete = self.is_complete;
    }

    /// What a line says as the rest of one that a narrow terminal cut within a word.
    fn look_at_cut_word(&mut self, first: usize, line: &[u8], least: Strength) {
        let Part {
            number, text, hits, ..
        } = &self.previous.lines()[first];
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
        let is_new = !self.is_complete && self.previous.lines().iter().all(|it| !it.is_complete);
        if least == Strength::Weak
            && is_new
            && table.may_be_inferred(places)
            && !self.found.is_spoken()
        {
            self.supposed.suppose(table, places, start, line);
        }
        self.candidates = candidates;
        self.found.keep_spoken(start, line);
    }

    /// Takes for said what was supposed of lines that end [`NEAR`] before this one, where nothing near
    /// them said more.
    fn settle(&mut self, number: usize) {
        while let Some(supposition) = self.supposed.settled(number) {
            let Supposition {
                number,
                line,
                at,
                inference,
            } = supposition;
            if self.found.is_said_since(number.saturating_sub(NEAR)) {
                continue;
            }
            for (rank, id) in inference.causes.iter().enumerate() {
                let Some(cause) = self.table.causes.iter().position(|cause| cause.id == *id) else {
                    continue;
                };
                let mark = Mark {
                    number,
                    line: &line,
                    at,
                    strength: match rank {
                        0 => inference.strength,
                        _ => Strength::Weak,
                    },
                    parts: Some(inference.parts),
                };
                self.found.keep(cause, mark);
            }
        }
    }

    /// Tries the patterns at `places` that did not match since line `start`, the surest first, until
    /// one spoke, there or in one of the lines alone: of what is less sure nothing is kept.
    fn try_patterns(&mut self, places: &[usize], start: usize, line: &[u8], least: Strength) {
        let table = self.table;
        let mut strengths =
            [Strength::Sure, Strength::Likely, Strength::Weak].map(|it| (it, false));
        for place in places {
            match table.roles[*place] {
                Role::Sign { .. } => self.try_pattern(*place, start, line),
                Role::Cause { pattern, .. } => {
                    for (strength, is_there) in &mut strengths {
                        *is_there |= pattern.strength == *strength;
                    }
                }
                _ => {}
            }
        }
        for (strength, is_there) in strengths {
            if strength < least {
                return;
            }
            if !is_there {
                continue;
            }
            if self.found.is_surer_since(start, strength) {
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
            Role::Cause { cause, pattern, .. } => {
                match self.speech(cause, pattern.strength, line, &found) {
                    Speech::Report => self.found.speak(cause, pattern.strength, at),
                    Speech::Mention if pattern.strength > Strength::Weak => {
                        self.found.speak(cause, Strength::Weak, at);
                    }
                    // What says little in a report says nothing elsewhere.
                    Speech::Mention | Speech::Absent => {}
                }
            }
            Role::Sign { sign, .. } => self.usage.sign(sign.proof, number, line, at),
            Role::Channel
            | Role::Context
            | Role::Exception
            | Role::Fact(_)
            | Role::Operation(_)
            | Role::Failure => {}
        }
    }

    /// Returns what a line does with the words at `range`. In a storm of messages that are reported and kept already,
    /// only their number matters.
    fn speech(
        &self,
        cause: usize,
        strength: Strength,
        line: &[u8],
        range: &Range<usize>,
    ) -> Speech {
        match self.found.is_certain(cause, strength) {
            true if is_zero_counter(line, range) => Speech::Absent,
            true => Speech::Report,
            false => speech(line, range),
        }
    }

    /// Returns what all of it says.
    pub(crate) fn finish(mut self) -> Answer {
        if let Some((channel, number, line, at)) = self.open_channel.take() {
            self.use_channel(channel, number, &line, at);
        }
        self.settle(usize::MAX);
        let causes = self.found.finish(&self.facts);
        let gpudirect = self.usage.finish();
        Answer { causes, gpudirect }
    }
}

/// Returns whether what matched on a line, which is 0 where it never did, belongs to what stands
/// here.
fn together(on: Option<usize>, number: usize) -> bool {
    on.is_some_and(|on| on != 0 && number.saturating_sub(on) <= TOGETHER)
}
