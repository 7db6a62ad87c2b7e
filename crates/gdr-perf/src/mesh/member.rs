//! A rank, which measures with the partners that the coordinator names.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use gdr_rdma::{Deadline, Device, Listener, Security, Session};

use super::outlier::DoctorFinding;
use super::protocol::{DOCTOR_LIMIT, Member, Message, SERVICE};
use super::settings::MeshSettings;
use crate::error::{PeerError, Result};
use crate::loopback::Timeouts;
use crate::peer_message::{receive, send};
use crate::transfer::{Thresholds, TransferEndpoint, TransferMemory};
use crate::wire::Wire;

/// Time between two attempts to reach a coordinator that does not listen yet.
const RETRY: Duration = Duration::from_millis(50);

/// Maximum number of a doctor's findings to report.
const MOST_FINDINGS: usize = 3;

/// What a rank measures with.
#[derive(Clone, Copy)]
pub struct RankSetup<'a> {
    /// Its RDMA device.
    pub device: &'a Device,
    /// Its memory.
    pub memory: TransferMemory<'a>,
    /// Accepts its partners.
    pub listener: &'a Listener,
    /// Which partners and coordinators to accept.
    pub security: &'a Security,
    /// Finds what may slow this rank down, worst first. Called if the rank is an outlier, with a limit of 90 s.
    pub doctor: &'a (dyn Fn() -> Vec<DoctorFinding> + Sync),
}

/// Joins the coordinator, and measures until it ends the rounds. Returns whether everything is as expected.
///
/// # Errors
/// [`Error::Settings`](crate::Error::Settings). An error also if no coordinator accepts in time, or it ends early. A
/// failing partner is not an error here, because the coordinator reports it.
pub fn join(
    setup: RankSetup<'_>,
    coordinator: SocketAddr,
    member: &Member,
    settings: &MeshSettings,
) -> Result<bool> {
    settings.check()?;
    let mut session = reach(coordinator, setup.security, settings.meet_within)?;
    let limit = settings.direction_limit();
    session.give_up_after(limit)?;
    send(
        &mut session,
        &Message::Join(member.clone()),
        Deadline::after(limit),
    )?;
    // The others may take their full time to meet, a rank pauses for at most two directions, and before the end the
    // doctors of other ranks may run.
    let limit_of_message = settings.meet_within + limit * 4 + DOCTOR_LIMIT;
    // The memory is registered once for all directions.
    let mut endpoint = TransferEndpoint::new(setup.device, setup.memory);
    loop {
        let outcome = match receive(&mut session, Deadline::after(limit_of_message))? {
            Message::Write { address, .. } => {
                write(&mut endpoint, address, setup.security, settings)
            }
            Message::Serve { .. } => serve(&mut endpoint, setup, settings),
            Message::Diagnose => {
                let mut findings = (setup.doctor)();
                findings.truncate(MOST_FINDINGS);
                let answer = Message::Findings { findings };
                send(&mut session, &answer, Deadline::after(limit))?;
                continue;
            }
            Message::End { passed } => return Ok(passed),
            other => return Err(PeerError::OutOfTurn(other.name()).into()),
        };
        let answer = match outcome {
            Ok((bytes_per_second, wire)) => Message::Done {
                bytes_per_second,
                wire,
            },
            Err(error) => Message::Failed {
                reason: error.to_string(),
            },
        };
        send(&mut session, &answer, Deadline::after(limit))?;
    }
}

/// Connects to the coordinator, which may not listen yet.
fn reach(coordinator: SocketAddr, security: &Security, limit: Duration) -> Result<Session> {
    let end = Instant::now() + limit;
    let terms = security.with_service(SERVICE);
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match Session::connect(coordinator, terms, Deadline::after(left)) {
            Err(gdr_rdma::Error::Connect { .. }) if left > RETRY => thread::sleep(RETRY),
            connected => return Ok(connected?),
        }
    }
}

fn write(
    endpoint: &mut TransferEndpoint<'_>,
    address: SocketAddr,
    security: &Security,
    settings: &MeshSettings,
) -> Result<(Option<u64>, Option<Wire>)> {
    let (plan, thresholds) = (settings.plan(), Thresholds::default());
    let report = endpoint.measure(address, security, &plan, &thresholds, &mut |_| {
        ControlFlow::Continue(())
    })?;
    let rate = report.rows.first().map(|row| row.gb_per_s * 1e9);
    Ok((rate.map(|rate| rate as u64), report.wire))
}

fn serve(
    endpoint: &mut TransferEndpoint<'_>,
    setup: RankSetup<'_>,
    settings: &MeshSettings,
) -> Result<(Option<u64>, Option<Wire>)> {
    let timeouts = Timeouts {
        peer: settings.timeout,
        step: settings.timeout,
    };
    let served = endpoint.serve(setup.listener, setup.security, timeouts, &mut |_| {
        ControlFlow::Continue(())
    });
    served.map(|_| (None, None))
}
