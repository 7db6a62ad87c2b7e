//! Decides whether a line reports an error or merely mentions it: a manual, an alert rule, a commit message, source
//! code, a search, a counter at zero.

use std::ops::Range;

use memchr::memmem;

use crate::clean::has_log_prefix;

/// What a line does with words that it contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speech {
    /// Reports them.
    Report,
    /// Mentions them, which proves nothing.
    Mention,
    /// Says that there were none.
    Absent,
}

/// Words right before a quotation that make it a report.
const REPORTING: [&str; 15] = [
    "failed",
    "fails",
    "error",
    "exception",
    "failure",
    "got",
    "get",
    "returned",
    "reported",
    "reports",
    "says",
    "said",
    "prints",
    "printed",
    "message",
];
/// Configuration keys whose values are texts to search for or to show.
const CONFIGURATION: [&str; 15] = [
    "alert",
    "annotations",
    "description",
    "expected",
    "expr",
    "match",
    "matches",
    "message_regex",
    "name",
    "pattern",
    "regex",
    "runbook",
    "summary",
    "title",
    "want",
];
/// Functions of programs that take a text to print, compare or search for.
const FUNCTIONS: [&str; 31] = [
    "append",
    "assert",
    "assert_in",
    "compile",
    "contains",
    "debug",
    "echo",
    "endswith",
    "error",
    "errorf",
    "fatalf",
    "find",
    "fprintf",
    "invalid_argument",
    "in",
    "info",
    "insert",
    "log",
    "match",
    "new",
    "print",
    "printf",
    "push_back",
    "puts",
    "runtime_error",
    "search",
    "startswith",
    "strcmp",
    "strstr",
    "warn",
    "warning",
];
/// Commands that print a text.
const PRINTS: [&str; 4] = ["echo", "printf", "logger", "die"];
/// Programs that search.
const SEARCHES: [&str; 6] = ["grep", "egrep", "zgrep", "rg", "ag", "awk"];
/// Words after which a number is a count.
const BEFORE_A_COUNT: [&str; 8] = ["and", "had", "has", "have", "saw", "shows", "were", "with"];
/// Parts of the names of error counters.
const COUNTED: [&str; 6] = ["err", "exceed", "timeout", "fail", "drop", "discard"];
/// Types of commits in conventional subjects.
const COMMITS: [&str; 11] = [
    "build", "chore", "ci", "docs", "feat", "fix", "perf", "refactor", "revert", "style", "test",
];
/// First words of change notes.
const CHANGES: [&str; 24] = [
    "add",
    "added",
    "adds",
    "address",
    "addressed",
    "addresses",
    "avoid",
    "avoids",
    "fix",
    "fixed",
    "fixes",
    "handle",
    "handles",
    "improve",
    "improved",
    "improves",
    "prevent",
    "prevents",
    "remove",
    "removed",
    "resolve",
    "resolved",
    "suppress",
    "work",
];
/// Words before something that was not mentioned before.
const ARTICLES: [&str; 5] = ["a", "an", "any", "each", "every"];
/// Words of a sentence about all machines of a kind, rather than a particular one.
const OF_THOSE: [&str; 5] = [
    " in cases where ",
    " on hosts where ",
    " on machines where ",
    " on nodes where ",
    " on systems where ",
];
/// Words after the subject of an explanation.
const EXPLAINING: [&str; 4] = [
    " indicate that ",
    " indicates that ",
    " mean that ",
    " means that ",
];
/// Words before a supposition.
const SUPPOSING: [&str; 4] = [" even if ", " even when ", " in case ", " whenever "];
/// First words of a sentence about a change.
const OF_CHANGES: [&str; 5] = [
    "this change ",
    "this commit ",
    "this patch ",
    "this pr ",
    "this release ",
];
/// First words of the description of a setting.
const OF_SETTINGS: [&str; 9] = [
    "a",
    "an",
    "controls",
    "how",
    "number",
    "sets",
    "specifies",
    "the",
    "whether",
];
/// Words that head a section of a manual about a fault.
const PARTS_OF_MANUALS: [&str; 7] = [
    "cause",
    "causes",
    "remedy",
    "resolution",
    "solution",
    "solutions",
    "workaround",
];
/// Words of sentences that do not occur in commands.
const OF_SENTENCES: [&str; 12] = [
    "a",
    "an",
    "are",
    "because",
    "fails",
    "is",
    "needs",
    "otherwise",
    "so",
    "the",
    "when",
    "without",
];
/// Words with which a line of source code declares a value.
const DECLARATIONS: [&str; 5] = ["const", "final", "let", "static", "var"];
/// First words of a line of source code, and its possible ends.
const CODE: [&str; 6] = ["case", "return", "#define", "else", "static", "const"];
const ENDS_OF_CODE: [&[u8]; 5] = [b";", b"{", b":", b",", b"\\"];

/// Returns what a line does with the words at `range`.
pub(crate) fn speech(line: &[u8], range: &Range<usize>) -> Speech {
    let (Some(before), Some(after)) = (line.get(..range.start), line.get(range.end..)) else {
        return Speech::Report;
    };
    if is_zero_counter(line, range) {
        return Speech::Absent;
    }
    let before = String::from_utf8_lossy(before);
    let from_start = String::from_utf8_lossy(&line[range.start..]);
    let after = String::from_utf8_lossy(after);
    let quotation = Quotation::around(&before, &from_start);
    // The most common case is tried first.
    let is_mention = quotation.is_some_and(|quotation| quotation.is_mention(line))
        || is_commit(&before)
        || is_heading(&before)
        || is_search(&before)
        || is_code(line)
        || is_change(line)
        || is_comment(&before, line)
        || is_remark(line)
        || is_template(line)
        || is_printed(line, range.end)
        || is_of_manual(&before, &after)
        || is_of_any(&before)
        || is_generic(&before, &after)
        || is_setting(line)
        || is_in_table(&before, &from_start, range.len())
        || is_help(&before)
        || is_compared(&after)
        || is_explained(&after)
        || is_entry_of_manual(line)
        || is_condition(&before);
    if is_mention {
        Speech::Mention
    } else {
        Speech::Report
    }
}

/// `0 retry_exc_err`, `rnr_nak_retry_err: 0`.
pub(crate) fn is_zero_counter(line: &[u8], range: &Range<usize>) -> bool {
    let is_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let start = range.start
        - line[..range.start]
            .iter()
            .rev()
            .take_while(|it| is_word(it))
            .count();
    let end = range.end
        + line[range.end..]
            .iter()
            .take_while(|it| is_word(it))
            .count();
    let words = &line[start..end];
    // Settings may be zero too, and report nothing.
    let counts = COUNTED.iter().any(|it| {
        words
            .windows(it.len())
            .any(|word| word.eq_ignore_ascii_case(it.as_bytes()))
    });
    if !counts {
        return false;
    }
    let is_name = words.contains(&b'_');
    let rest = &line[end..];
    let gap = rest
        .iter()
        .take_while(|it| matches!(it, b'"' | b'\'' | b' ' | b'\t' | b':' | b'='))
        .count();
    let assigned = rest[..gap].iter().any(|byte| matches!(byte, b':' | b'='));
    let value = &rest[gap..];
    let is_zero = value.first() == Some(&b'0')
        && value
            .get(1)
            .is_none_or(|next| !(is_word(next) || matches!(next, b'.' | b'x')));
    if gap > 0 && is_zero && (assigned || is_name) {
        return true;
    }
    let before = line[..start].trim_ascii_end();
    let Some((b'0', front)) = before.split_last() else {
        return false;
    };
    is_name
        && before.len() < start
        && front.last().is_none_or(|last| {
            // A separate number, not preceded by a word such as "rank".
            if *last != b' ' {
                return matches!(last, b',' | b';' | b'(' | b':');
            }
            let word = front.trim_ascii().rsplit(|byte| *byte == b' ').next();
            word.is_some_and(|word| {
                let word = word.to_ascii_lowercase();
                let ends_a_part = matches!(word.last(), Some(b':' | b',' | b';'));
                let joins = BEFORE_A_COUNT.iter().any(|it| it.as_bytes() == word);
                joins || ends_a_part
            })
        })
}

/// Recognizes `fix(net): handle ...`, the subject of a commit.
fn is_commit(before: &str) -> bool {
    let Some((kind, _)) = before.split_once(": ") else {
        return false;
    };
    let kind = kind.trim_end_matches('!');
    let kind = kind.split_once('(').map_or(
        kind,
        |(kind, scope)| {
            if scope.ends_with(')') { kind } else { "" }
        },
    );
    COMMITS.contains(&kind)
}

/// Recognizes `## GPU has fallen off the bus`. A single mark is a root prompt.
fn is_heading(before: &str) -> bool {
    let marks = before.len() - before.trim_start_matches('#').len();
    (2..=6).contains(&marks) && before[marks..].starts_with(' ')
}

/// Recognizes `case IBV_WC_RETRY_EXC_ERR: return "...";`, also in a diff.
fn is_code(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let added = line.strip_prefix(b"+").map(<[u8]>::trim_ascii_start);
    let is_argument = added.is_some_and(|line| line.starts_with(b"\""));
    let line = added.unwrap_or(line);
    let marks: [&[u8]; 4] = [b"// ", b"/*", b"\"\"\"", b"'''"];
    if marks.iter().any(|mark| line.starts_with(mark)) {
        return true;
    }
    let word = line.split(|byte| *byte == b' ').next().unwrap_or_default();
    if word == b"assert" || is_argument {
        return true;
    }
    let is = |words: &[&str]| words.iter().any(|it| it.as_bytes() == word);
    let names = is(&DECLARATIONS) && line.windows(3).any(|window| window == b" = ");
    names || is(&CODE) && ENDS_OF_CODE.iter().any(|end| line.ends_with(end))
}

/// Recognizes `| 79 | GPU has fallen off the bus | hardware |`: a table cell with little more than the words, which
/// have `length` bytes.
fn is_in_table(before: &str, from_start: &str, length: usize) -> bool {
    /// How many letters more.
    const MORE: usize = 12;
    let Some((_, left)) = before.rsplit_once(" | ") else {
        return false;
    };
    let Some((right, _)) = from_start.split_once(" |") else {
        return false;
    };
    left.trim().len() + right.trim().len() <= length + MORE
}

/// Recognizes `  --retries N    how often ...`, the help of an option.
fn is_help(before: &str) -> bool {
    let line = before.trim_start();
    let is_option = line.starts_with("--") && !line.starts_with("---")
        || line.starts_with('-') && line.get(2..).is_some_and(|rest| rest.starts_with(", --"));
    is_option && line.contains("  ")
}

/// Recognizes `EFAULT  ibv_reg_mr() ...` and `See also: ...`.
fn is_entry_of_manual(line: &[u8]) -> bool {
    let line = line.trim_ascii();
    let name = line.iter().take_while(|it| it.is_ascii_uppercase()).count();
    let is_errno = name > 3 && line.starts_with(b"E") && line[name..].starts_with(b"  ");
    is_errno || line.starts_with(b"See ") || line.starts_with(b"see also")
}

/// Recognizes `GPUDirect RDMA disabled vs. enabled`.
fn is_compared(after: &str) -> bool {
    let next = after.split_whitespace().next().unwrap_or_default();
    next.eq_ignore_ascii_case("vs") || next.eq_ignore_ascii_case("vs.") || next == "versus"
}

/// Recognizes `ncclSystemError indicates that a call failed`.
fn is_explained(after: &str) -> bool {
    let after = after.split(". ").next().unwrap_or_default();
    EXPLAINING.iter().any(|it| after.contains(it))
}

/// Recognizes `- Fixed an issue where ...` and `* Fix hang in ...`.
fn is_change(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    let line = line.trim();
    let item = ["- ", "* ", "• "]
        .iter()
        .find_map(|mark| line.strip_prefix(mark));
    let mut words = item.unwrap_or(line).split_whitespace();
    let first = words.next().unwrap_or_default();
    // Without a list mark, only a sentence in the past tense is certain, because programs print `Handle is invalid`.
    let is_sentence =
        first.ends_with("ed") && words.next().is_some_and(|it| ARTICLES.contains(&it));
    (item.is_some() || is_sentence)
        && CHANGES
            .iter()
            .any(|it| first.trim_end_matches(':').eq_ignore_ascii_case(it))
}

/// `docker run --shm-size=10g image   # avoids ...`.
fn is_comment(before: &str, line: &[u8]) -> bool {
    !has_log_prefix(line)
        && (before.rsplit_once(" # "))
            .is_some_and(|(command, _)| command.split_whitespace().count() >= 2)
}

/// Recognizes `# without the right it fails with ...`: a root prompt is followed by a command, and headings begin with
/// a capital letter.
fn is_remark(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"# ") else {
        return false;
    };
    rest.first().is_some_and(u8::is_ascii_lowercase)
        && rest
            .split(|byte| *byte == b' ')
            .any(|word| OF_SENTENCES.iter().any(|it| it.as_bytes() == word))
}

/// Recognizes `modprobe x || echo '...'`, where the words end within the printed text.
fn is_printed(line: &[u8], end: usize) -> bool {
    let (before, rest) = line.split_at(end.saturating_sub(1));
    let (before, rest) = (
        String::from_utf8_lossy(before),
        String::from_utf8_lossy(rest),
    );
    Quotation::around(&before, &rest)
        .is_some_and(|quotation| PRINTS.contains(&last_word(quotation.before.trim_end())))
}

/// `**Cause.** ... **Solution.** ...`.
fn is_of_manual(before: &str, after: &str) -> bool {
    [before, after].iter().any(|text| {
        let mut words = text.split("**").skip(usize::from(!text.starts_with("**")));
        words.any(|word| {
            let word = word.trim().trim_end_matches(['.', ':']);
            PARTS_OF_MANUALS
                .iter()
                .any(|it| word.eq_ignore_ascii_case(it))
        })
    })
}

/// Recognizes `a GPU that had ...`: any GPU, not a particular one.
fn is_of_any(before: &str) -> bool {
    let mut words = before.split_whitespace().rev().map(str::to_ascii_lowercase);
    let mut word = words.next().unwrap_or_default();
    if ["has", "have", "had", "is", "was"].contains(&word.as_str()) {
        word = words.next().unwrap_or_default();
    }
    let is_relative = ["that", "which", "whose"].contains(&word.as_str());
    is_relative
        && words
            .nth(1)
            .is_some_and(|it| ARTICLES.contains(&it.as_str()))
}

/// Recognizes `fails on hosts where ...`, `goes on even if ...` and `this change makes it fail when ...`, which are
/// about all such cases.
fn is_generic(before: &str, after: &str) -> bool {
    let before = sentence(before).to_ascii_lowercase();
    let after = after.split(". ").next().unwrap_or_default();
    let of_those = |text: &str| OF_THOSE.iter().any(|it| text.contains(it));
    let supposes = SUPPOSING.iter().any(|it| before.contains(it));
    let of_change = OF_CHANGES
        .iter()
        .any(|it| before.trim_start().starts_with(it));
    of_those(&before) || of_those(after) || supposes || of_change
}

/// Recognizes `NCCL_IB_RETRY_CNT: the number of ...`, the description of a setting.
fn is_setting(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    let line = line.trim_start_matches(['-', '*', ' ', '`']);
    let is_of_name = |it: char| it.is_ascii_uppercase() || it.is_ascii_digit() || it == '_';
    let name = line.find(|it| !is_of_name(it)).unwrap_or(line.len());
    let rest = line[name..].trim_start_matches(['`', ' ', ':', '-']);
    let says = rest.split_whitespace().next().unwrap_or_default();
    line[..name].contains('_') && rest.len() + name < line.len() && OF_SETTINGS.contains(&says)
}

/// Recognizes `dmesg | grep -i "fallen off the bus"`.
fn is_search(before: &str) -> bool {
    before
        .split(['|', ';', '&'])
        .next_back()
        .is_some_and(|command| {
            let mut words = command.split_whitespace();
            // What precedes the program: a prompt, `sudo`, a variable.
            words.any(|word| SEARCHES.contains(&word.trim_start_matches(['$', '#'])))
        })
}

/// Returns what has been said of the sentence that a text ends in.
fn sentence(before: &str) -> &str {
    before
        .rsplit_once(". ")
        .map_or(before, |(_, sentence)| sentence)
}

/// `If a worker stops with ...`, unless the writer speaks of what he sees.
fn is_condition(before: &str) -> bool {
    let sentence = sentence(before);
    let mut words = sentence
        .split_whitespace()
        .map(|word| word.trim_matches(|it: char| !it.is_alphanumeric()));
    let first = words.find(|word| !word.is_empty()).unwrap_or_default();
    let is_condition = ["if", "when", "whenever", "should"]
        .iter()
        .any(|it| first.eq_ignore_ascii_case(it));
    let first_person = ["I", "I'm", "my", "we", "We", "our"];
    let of_reader = ["if you ", "when you ", "whenever you ", "should you "];
    let lower = sentence.to_ascii_lowercase();
    (is_condition || of_reader.iter().any(|it| lower.contains(it)))
        && !sentence
            .split_whitespace()
            .any(|word| first_person.contains(&word))
}

/// `title: port {{ $labels.port }} is down`: what is still to be filled in.
fn is_template(line: &[u8]) -> bool {
    memmem::find_iter(line, b"{{")
        .any(|at| matches!(line[at + 2..].trim_ascii_start(), [b'$' | b'.', ..]))
}

/// A text in quotation marks that the words stand in.
struct Quotation<'a> {
    mark: char,
    /// Whether its end is on the same line.
    is_closed: bool,
    /// What stands before the opening mark.
    before: &'a str,
}

impl<'a> Quotation<'a> {
    /// Returns the innermost quotation that encloses the beginning of what stands after `before`.
    fn around(before: &'a str, from_start: &str) -> Option<Self> {
        [('"', '"'), ('`', '`'), ('“', '”'), ('‘', '’'), ('\'', '\'')]
            .into_iter()
            .filter_map(|(open, close)| {
                let marks = before.matches(open).count();
                let is_open = if open == close {
                    marks % 2 == 1
                } else {
                    before.matches(close).count() < marks
                };
                let at = before.rfind(open).filter(|_| is_open)?;
                // An apostrophe stands within a word.
                let opens = before[..at]
                    .chars()
                    .next_back()
                    .is_none_or(|it| !it.is_alphanumeric());
                opens.then_some((at, open, close))
            })
            .max_by_key(|(at, ..)| *at)
            .map(|(at, mark, close)| Self {
                mark,
                is_closed: from_start.contains(close),
                before: &before[..at],
            })
    }

    fn is_mention(&self, line: &[u8]) -> bool {
        let before = self.before.trim_end_matches(['f', 'r', 'b', 'u', 'L']);
        if let Some(call) = open_call(before) {
            return FUNCTIONS.contains(&last_word(call).to_ascii_lowercase().as_str());
        }
        if PRINTS.contains(&last_word(before.trim_end())) {
            return true;
        }
        if before.contains("= [") || before.contains("= {") {
            return true;
        }
        if let Some(key) = before.trim_end().strip_suffix([':', '=']) {
            // A key in quotation marks is one of a record of a log.
            let is_configuration = !key.ends_with('"') && CONFIGURATION.contains(&last_word(key));
            // Marked as code, it is a part of prose.
            if self.mark != '`' || is_configuration {
                return is_configuration;
            }
        }
        // In a line of a log a quotation is a part of the message.
        if !self.is_closed || has_log_prefix(line) || !self.before.ends_with([' ', '(']) {
            return false;
        }
        let words = self.before.split_whitespace();
        let plain = |word: &&str| {
            word.trim_matches([',', '('])
                .chars()
                .all(|it| it.is_ascii_lowercase())
        };
        let introduced_by = last_word(self.before.trim_end().trim_end_matches(':'));
        let reports = (REPORTING.iter()).any(|it| introduced_by.eq_ignore_ascii_case(it));
        let least = if self.mark == '`' { 1 } else { 2 };
        !reports && words.filter(plain).count() >= least
    }
}

/// Returns what stands before the last bracket that is not closed, if the text is within the arguments
/// of a call: `Contains(t, message, `.
fn open_call(text: &str) -> Option<&str> {
    let text = text.trim_end();
    if !text.ends_with(['(', ',']) {
        return None;
    }
    let mut closed = 0;
    for (at, character) in text.char_indices().rev() {
        match character {
            ')' => closed += 1,
            '(' if closed == 0 => return Some(&text[..at]),
            '(' => closed -= 1,
            _ => {}
        }
    }
    None
}

/// Returns the identifier that a text ends with.
fn last_word(text: &str) -> &str {
    let start = text
        .rfind(|it: char| !(it.is_alphanumeric() || it == '_'))
        .map_or(0, |at| {
            at + text[at..].chars().next().map_or(1, char::len_utf8)
        });
    &text[start..]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns what each line does with the words between `<` and `>`.
    fn of(line: &str) -> Speech {
        let (start, rest) = (line.find('<').unwrap(), line.replace('<', ""));
        let end = rest.find('>').unwrap();
        speech(rest.replacen('>', "", 1).as_bytes(), &(start..end))
    }

    #[test]
    fn a_report_is_a_report() {
        for line in [
            "<transport retry counter exceeded>",
            "node-a:1:2 [0] NCCL WARN Call failed with error \"<Bad address>\"",
            "{\"level\":\"error\",\"msg\":\"<GPU has fallen off the bus>\"}",
            "level=error msg=\"<ibv_reg_mr failed: Bad address>\"",
            "RuntimeError: \"<Couldn't allocate MR>\"",
            "perftest failed with error '<Couldn't allocate MR>' on node 3",
            "When I start the job I get <Couldn't allocate MR>",
            "NCCL_IB_TIMEOUT=22 <transport retry counter exceeded>",
            "MODULE_A: <Couldn't allocate MR>",
            "rank 0 <retry_exc_err> from 10.0.0.1",
            "We get this error: `<Couldn't allocate MR>`",
            "Fixed IPs: <Couldn't allocate MR>",
            "return code 1: <Couldn't allocate MR>",
            "{\"errors\": [\"<Couldn't allocate MR>\"]}",
            "gpu01 | rank 3 | RuntimeError while it was started: <Couldn't allocate MR> | node 7",
            "-- <Couldn't allocate MR>",
            "# ./ib_write_bw: <Couldn't allocate MR>",
            "# The job ends with <Couldn't allocate MR>",
            "the GPU that runs rank 3 has <fallen off the bus>",
            "it didn't start: <Couldn't allocate MR>, that's all",
            "<retry_exc_err>: 3",
            "<retry_exc_err> 0x81",
        ] {
            assert_eq!(of(line), Speech::Report, "{line}");
        }
    }

    #[test]
    fn quotations_rules_code_searches_and_conditions_prove_nothing() {
        for line in [
            "step 4. If a worker stops with \"<Bad address>\", see the next page.",
            "docs: explain what \"<transport retry counter exceeded>\" means",
            "fix(net)!: no more <transport retry counter exceeded> at start",
            "  annotations: { summary: \"<GPU has fallen off the bus>\" }",
            "  pattern: '<fallen off the bus>'",
            "printf(\"<Couldn't allocate MR>\\n\");",
            "if (strstr(line, \"x\") || strstr(\"<fallen off the bus>\"))",
            "$ dmesg | grep -i \"<fallen off the bus>\"",
            "## <GPU has fallen off the bus>",
            "the table says what “<local protection error>” stands for",
            "see `<Bad address>` below",
            "When the log shows <GPU has fallen off the bus>, power the machine off.",
            "    case <IBV_WC_RETRY_EXC_ERR>: return \"transport retry counter exceeded\";",
            "+    return \"<transport retry counter exceeded>\";",
            "\tassert.Contains(t, events[0].Message, \"<GPU has fallen off the bus>\")",
            "args: [\"-c\", \"modprobe x || echo '<could not insert x>'\"]",
            "docker run image   # avoids \"<Bus error> in shared memory\"",
            "title: InfiniBand port {{ $labels.port }} <is down>",
            "# without the right <ibv_reg_mr fails> with \"Cannot allocate memory\"",
            "    stop_list.push_back(\"<Couldn't allocate MR>\");",
            "+            \"<Couldn't allocate MR>",
            "wantErr: errors.New(\"<Couldn't allocate MR>\"),",
            "    \"\"\"Raised when the GPU has <fallen off the bus>.\"\"\"",
            "79 | GPU has <fallen off the bus> | hardware |",
            "const xid79 = \"GPU has <fallen off the bus>\"",
            "NCCL_IB_TIMEOUT: raise it if you see <IBV_WC_RETRY_EXC_ERR> on large fabrics.",
            "<GPUDirect RDMA disabled> vs. enabled: throughput compared",
            "  --retries N    how often before <transport retry counter exceeded> is reported",
            "    assert '<retry_exc_err>' in metrics",
            "See also: Xid 79 (GPU has <fallen off the bus>).",
            "        throw std::runtime_error(\"<Couldn't allocate MR>\");",
            "EFAULT  <ibv_reg_mr() failed with Bad address>: the range is not accessible.",
            "expected: '<GPU has fallen off the bus>', got: ''",
            "ERROR_TEXTS = ['<GPU has fallen off the bus>', 'local protection error']",
            "- Fixed an issue where <cuMemCreate returned 800> without a channel.",
            "* Fix <hang in ncclCommInitRank> when it is set",
            "Fixed a bug: <Couldn't allocate MR> with large buffers",
            "**Cause.** <ibv_reg_mr returns ENOMEM> when the limit is low. **Solution.** Lift it.",
            "Before this change, a GPU that had <fallen off the bus> was scheduled.",
            "Validates the classes of status codes: `<WR_FLUSH_ERR>` and `RETRY_EXC_ERR` differ.",
            "This change makes it fail at once when <VRAM is detected as host> memory.",
            "<ncclSystemError> and ncclRemoteError indicate that a call failed.",
            "The pod goes on even if the <fabric manager does not come up>.",
            "<ibv_reg_mr hits EINVAL> at times on hosts where the limit is low.",
            "NCCL_IB_RETRY_CNT: the retries before <transport retry counter exceeded> is returned",
        ] {
            assert_eq!(of(line), Speech::Mention, "{line}");
        }
    }

    #[test]
    fn a_counter_of_zero_says_that_there_was_nothing() {
        for line in [
            "0 <retry_exc_err>",
            "10 flows with 0 <retry_exc_err>",
            "<rnr_nak_retry_err>: 0",
            "\"<local_ack_timeout>_err\": 0,",
            "<retry_exc_err>=0, packets=3",
            "<retry_exc_err> 0",
        ] {
            assert_eq!(of(line), Speech::Absent, "{line}");
        }
    }
}
