//! Rank 0: gathers the ranks, starts the rounds, and collects the results.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::time::Duration;

use gdr_rdma::{Deadline, Listener, Security, Session};

use super::matrix::{Cell, CellOutcome, Link, expected};
use super::outlier::{DoctorAnswer, Outlier, outliers, slow_throughout};
use super::protocol::{DOCTOR_LIMIT, Member, Message, SERVICE, VERSION};
use super::report::MeshReport;
use super::schedule::{Pair, rounds};
use super::settings::{MeshSettings, RankCpus};
use crate::arrivals::Arrivals;
use crate::error::{Error, PeerError, Result, SettingsError, proceed};
use crate::peer_message::{receive, send};
use crate::report::Schema;
use crate::wire::Wire;

/// Maximum number of ranks. Each has a session with the coordinator.
pub const MOST_RANKS: usize = 4096;
/// How long a connected rank may take to introduce itself.
const INTRODUCTION: Duration = Duration::from_secs(5);
/// How long a rank may take to accept the last message.
const FAREWELL: Duration = Duration::from_secs(3);

/// Progress of a mesh.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum MeshEvent<'a> {
    /// A rank has joined: the rank, how many have joined, and how many are expected.
    Joined(&'a Member, usize, usize),
    /// A round was measured: how many directions are done, and how many there are.
    Round(usize, usize),
}

/// A rank that has joined.
struct Present {
    member: Member,
    session: Session,
    /// Why it no longer takes part.
    lost: Option<String>,
}

/// Waits for `ranks` ranks, has every pair measure both directions, and returns the matrix. The pairs of a round have
/// no rank in common. If a rank ends or does not answer in time, the report says so and the others continue.
///
/// # Errors
/// [`Error::Settings`]; [`Error::Peer`] if ranks contradict each other; an error if fewer than two ranks joined;
/// [`Error::Stopped`] if `observe` breaks.
pub fn coordinate(
    listener: &Listener,
    security: &Security,
    ranks: usize,
    settings: &MeshSettings,
    observe: &mut dyn FnMut(MeshEvent<'_>) -> ControlFlow<()>,
) -> Result<MeshReport> {
    settings.check()?;
    if !(2..=MOST_RANKS).contains(&ranks) {
        return Err(SettingsError::Ranks(ranks).into());
    }
    let mut present = meet(listener, security, ranks, settings, observe)?;
    if present.len() < 2 {
        return Err(Error::LonelyRank {
            ranks,
            waited: settings.meet_within,
        });
    }
    let all = rounds(ranks);
    let (mut cells, mut done, total) = (Vec::new(), 0, 2 * all.len());
    for round in all {
        let here =
            |pair: &Pair| present.contains_key(&pair.first) && present.contains_key(&pair.second);
        let pairs: Vec<Pair> = round.into_iter().filter(here).collect();
        for reverse in [false, true] {
            let directions = pairs.iter().map(|pair| match reverse {
                false => (pair.first, pair.second),
                true => (pair.second, pair.first),
            });
            cells.extend(measure(&mut present, directions.collect(), settings));
            done += 1;
            proceed(observe(MeshEvent::Round(done, total)))?;
        }
    }
    cells.sort_by_key(|cell| (cell.from, cell.to));
    let absent: Vec<usize> = (0..ranks)
        .filter(|rank| !present.contains_key(rank))
        .collect();
    let expected = expected(&cells);
    let mut outliers = outliers(&cells, &expected, settings.least);
    if settings.cpus == RankCpus::Shared {
        outliers.extend(slow_throughout(&cells, &expected));
    }
    ask_doctors(&mut present, &mut outliers);
    let passed = outliers.is_empty() && absent.is_empty();
    for rank in present.values_mut().filter(|rank| rank.lost.is_none()) {
        // A rank that ended in the meantime needs no farewell.
        let _ = send(
            &mut rank.session,
            &Message::End { passed },
            Deadline::after(FAREWELL),
        );
    }
    let members: Vec<Member> = present.into_values().map(|rank| rank.member).collect();
    Ok(MeshReport {
        schema: Schema::first("gdr.mesh"),
        simulated: members.iter().any(|member| member.simulated),
        ranks,
        members,
        absent,
        size: settings.size,
        expected,
        cells,
        least: settings.least,
        outliers,
        passed,
    })
}

/// Accepts ranks until all have joined or the time is over. Connections that stay silent, or send something else, delay
/// none of them.
fn meet(
    listener: &Listener,
    security: &Security,
    ranks: usize,
    settings: &MeshSettings,
    observe: &mut dyn FnMut(MeshEvent<'_>) -> ControlFlow<()>,
) -> Result<BTreeMap<usize, Present>> {
    let arrivals = Arrivals {
        listener,
        terms: security.with_service(SERVICE),
        deadline: Deadline::after(settings.meet_within),
        limit: INTRODUCTION,
    };
    let mut present = BTreeMap::new();
    let met = arrivals.each(|mut session, said| {
        let Ok(Message::Join(member)) = said else {
            // The peer has ended, or is not a rank: the others continue.
            return Ok(ControlFlow::Continue(()));
        };
        if let Some(reason) = refusal(&member, ranks, &present) {
            // The rank reports the refusal. Here it counts as absent.
            let _ = session.refuse(&reason, Deadline::after(FAREWELL));
            return Ok(ControlFlow::Continue(()));
        }
        if session.give_up_after(settings.direction_limit()).is_err() {
            // The rank has ended, and counts as absent.
            return Ok(ControlFlow::Continue(()));
        }
        let joined = MeshEvent::Joined(&member, present.len() + 1, ranks);
        proceed(observe(joined))?;
        present.insert(
            member.rank,
            Present {
                member,
                session,
                lost: None,
            },
        );
        Ok(match present.len() < ranks {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        })
    });
    match met {
        Ok(())
        | Err(Error::Rdma(gdr_rdma::Error::Deadline(_) | gdr_rdma::Error::NoPeer { .. })) => {
            Ok(present)
        }
        Err(error) => Err(error),
    }
}

/// Returns why a rank cannot take part.
fn refusal(member: &Member, ranks: usize, present: &BTreeMap<usize, Present>) -> Option<String> {
    if member.version != VERSION {
        return Some(format!(
            "this is version {VERSION} of the protocol, not {}: use one version of gdr",
            member.version
        ));
    }
    if member.ranks != ranks || member.rank >= ranks {
        return Some(format!(
            "it is rank {} of {}, and here are {ranks} ranks: start all with one number",
            member.rank, member.ranks
        ));
    }
    present.contains_key(&member.rank).then(|| {
        format!(
            "there is a rank {} already: start each rank once",
            member.rank
        )
    })
}

/// Has pairs without a common rank measure one direction at the same time.
fn measure(
    present: &mut BTreeMap<usize, Present>,
    directions: Vec<(usize, usize)>,
    settings: &MeshSettings,
) -> Vec<Cell> {
    let deadline = Deadline::after(settings.direction_limit());
    let started: Vec<_> = directions
        .into_iter()
        .map(|(from, to)| (from, to, start(present, from, to, deadline)))
        .collect();
    started
        .into_iter()
        .map(|(from, to, started)| {
            let served = answer(present, to, started.clone(), deadline);
            let written = answer(present, from, started, deadline);
            let outcome = match (written, served) {
                (Ok((Some(bytes_per_second), wire)), Ok(_)) => CellOutcome::Measured {
                    gb_per_s: bytes_per_second as f64 / 1e9,
                    wire,
                },
                (Ok((None, _)), Ok(_)) => CellOutcome::Failed {
                    reason: "no rate was reported".to_owned(),
                },
                (Err(reason), _) | (_, Err(reason)) => CellOutcome::Failed { reason },
            };
            Cell {
                from,
                to,
                link: link(present, from, to),
                outcome,
            }
        })
        .collect()
}

fn link(present: &BTreeMap<usize, Present>, from: usize, to: usize) -> Link {
    let host = |rank: usize| present.get(&rank).map(|rank| &rank.member.host);
    match host(from) == host(to) {
        true => Link::SameHost,
        false => Link::BetweenHosts,
    }
}

/// Starts one direction; the error is the reason why it cannot be measured.
fn start(
    present: &mut BTreeMap<usize, Present>,
    from: usize,
    to: usize,
    deadline: Deadline,
) -> Result<(), String> {
    for rank in [from, to] {
        if let Some(reason) = present.get(&rank).and_then(|rank| rank.lost.clone()) {
            return Err(reason);
        }
    }
    let address = present.get(&to).map(|rank| rank.member.listens);
    let address = address.ok_or_else(|| format!("rank {to} has not joined"))?;
    order(present, to, &Message::Serve { from }, deadline)?;
    order(present, from, &Message::Write { to, address }, deadline)
}

/// Asks each rank that may cause an outlier what the doctor finds on its host.
fn ask_doctors(present: &mut BTreeMap<usize, Present>, outliers: &mut [Outlier]) {
    let deadline = Deadline::after(DOCTOR_LIMIT);
    let suspects: BTreeSet<usize> = outliers
        .iter()
        .flat_map(|outlier| outlier.subject.ranks())
        .collect();
    // All of them run the doctor at the same time. A rank that is lost, before or during this, has no answer.
    let asked: Vec<usize> = suspects
        .into_iter()
        .filter(|rank| {
            let is_here = present.get(rank).is_some_and(|it| it.lost.is_none());
            is_here && order(present, *rank, &Message::Diagnose, deadline).is_ok()
        })
        .collect();
    for rank in asked {
        let Some(there) = present.get_mut(&rank) else {
            continue;
        };
        let findings = match receive(&mut there.session, deadline) {
            Ok(Message::Findings { findings }) => findings,
            Ok(other) => {
                there.lose(rank, &PeerError::OutOfTurn(other.name()).into());
                continue;
            }
            Err(error) => {
                there.lose(rank, &error);
                continue;
            }
        };
        let answer = DoctorAnswer {
            rank,
            host: there.member.host.clone(),
            findings,
        };
        for outlier in &mut *outliers {
            if outlier.subject.ranks().contains(&rank) {
                outlier.doctor.push(answer.clone());
            }
        }
    }
}

fn order(
    present: &mut BTreeMap<usize, Present>,
    rank: usize,
    message: &Message,
    deadline: Deadline,
) -> Result<(), String> {
    let Some(there) = present.get_mut(&rank) else {
        return Err(format!("rank {rank} has not joined"));
    };
    send(&mut there.session, message, deadline).map_err(|error| there.lose(rank, &error))
}

/// Returns the answer of a rank to what it was asked to do.
fn answer(
    present: &mut BTreeMap<usize, Present>,
    rank: usize,
    started: Result<(), String>,
    deadline: Deadline,
) -> Result<(Option<u64>, Option<Wire>), String> {
    started?;
    let Some(there) = present.get_mut(&rank) else {
        return Err(format!("rank {rank} has not joined"));
    };
    if let Some(reason) = &there.lost {
        return Err(reason.clone());
    }
    match receive(&mut there.session, deadline) {
        Ok(Message::Done {
            bytes_per_second,
            wire,
        }) => Ok((bytes_per_second, wire)),
        Ok(Message::Failed { reason }) => Err(format!("rank {rank}: {reason}")),
        Ok(other) => {
            let error = PeerError::OutOfTurn(other.name()).into();
            Err(there.lose(rank, &error))
        }
        Err(error) => Err(there.lose(rank, &error)),
    }
}

impl Present {
    /// Excludes the rank from the rest of the run; returns the reason.
    fn lose(&mut self, rank: usize, error: &Error) -> String {
        let what = match error {
            Error::Rdma(gdr_rdma::Error::Deadline(_)) => "does not answer".to_owned(),
            Error::Rdma(gdr_rdma::Error::Handshake(_)) => "has ended".to_owned(),
            error => format!("is lost: {error}"),
        };
        let reason = format!("rank {rank} on {} {what}", self.member.host);
        self.lost = Some(reason.clone());
        reason
    }
}
