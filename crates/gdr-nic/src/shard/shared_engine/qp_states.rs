//! State transitions of queue pairs, and the steering of packets to them.

use gdr_roce::{Qpn, RtrAttributes, State, StateError};

use super::SharedEngine;
use crate::error::Result;
use crate::peer::Peer;
use crate::retained;
use crate::service::Service;
use crate::shard::qp_table::unknown_qp;
use gdr_udp::FlowId;
use gdr_udp::FlowRule;
use gdr_udp::Spread;

impl SharedEngine {
    pub(crate) fn qp_state(&self, qpn: Qpn) -> State {
        self.lock().state(qpn).unwrap_or(State::Reset)
    }

    /// Moves a queue pair to RESET. Discards posted requests without completions.
    pub(crate) fn reset_qp(&self, qpn: Qpn) {
        let mut engine = self.lock();
        engine.acknowledge(qpn, &self.device.regions.read(self.shard));
        let retained = engine.reset(qpn);
        drop(engine);
        retained::release(retained);
    }

    pub(crate) fn qp_to_rtr(&self, qpn: Qpn, peer: Peer, attributes: &RtrAttributes) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        engine.connect(qpn, peer, attributes)
    }

    /// Changes a queue pair of this service. `to` is the state named by a refusal.
    pub(crate) fn change_qp<S: Service>(
        &self,
        qpn: Qpn,
        to: State,
        change: impl FnOnce(&mut S::State) -> std::result::Result<(), StateError>,
    ) -> Result<()> {
        let mut engine = self.lock();
        // The change may affect which requests are accepted.
        engine.close_intake(qpn);
        let protocol = engine.schedule(qpn).and_then(|qp| S::of(&mut qp.transport));
        Ok(change(protocol.ok_or_else(|| unknown_qp(to))?)?)
    }

    /// Like [`SharedEngine::change_qp`], but fails on a failed device, and sends what the new state permits.
    pub(crate) fn advance_qp<S: Service>(
        &self,
        qpn: Qpn,
        to: State,
        change: impl FnOnce(&mut S::State) -> std::result::Result<(), StateError>,
    ) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let protocol = engine.schedule(qpn).and_then(|qp| S::of(&mut qp.transport));
        change(protocol.ok_or_else(|| unknown_qp(to))?)?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Moves a datagram queue pair from INIT to RTR.
    pub(crate) fn ud_to_rtr(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        engine.open_to_all(qpn)
    }

    /// Moves a queue pair from RTS to SQD.
    pub(crate) fn qp_to_sqd(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        let qp = engine.schedule(qpn);
        let qp = qp.ok_or_else(|| unknown_qp(State::SendQueueDrained))?;
        qp.transport.enter_sqd()?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Moves a queue pair from SQD or SQE to RTS.
    pub(crate) fn resume_qp(&self, qpn: Qpn) -> Result<()> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let qp = engine.schedule(qpn);
        let qp = qp.ok_or_else(|| unknown_qp(State::ReadyToSend))?;
        qp.transport.resume()?;
        self.send_now(engine, self.clock().now());
        Ok(())
    }

    /// Returns whether a queue pair in SQD is still finishing requests.
    pub(crate) fn is_draining(&self, qpn: Qpn) -> bool {
        let mut engine = self.lock();
        engine
            .schedule(qpn)
            .is_some_and(|qp| qp.transport.is_draining())
    }

    /// Moves a connection to another peer address.
    pub(crate) fn move_peer(&self, qpn: Qpn, peer: Peer) -> Result<()> {
        self.lock().move_peer(qpn, peer)
    }

    /// Makes a raw packet queue pair receive the frames of a flow.
    pub(crate) fn add_flow(&self, qpn: Qpn, rule: FlowRule) -> Result<FlowId> {
        let mut engine = self.lock();
        engine.check_alive()?;
        let Some(packets) = self.socket.packets() else {
            return Err(unknown_qp(State::ReadyToReceive));
        };
        let added = engine.packets.add_flow(packets, qpn, rule);
        drop(engine);
        // The progress thread may be waiting without the packet socket.
        self.wake();
        added
    }

    pub(crate) fn spread(&self, qpn: Qpn, spread: Spread) {
        self.lock().packets.spread(qpn, spread);
    }

    pub(crate) fn remove_flow(&self, id: FlowId) {
        if let Some(packets) = self.socket.packets() {
            self.lock().packets.remove_flow(packets, id);
        }
    }

    pub(crate) fn qp_to_error(&self, qpn: Qpn) {
        let mut engine = self.lock();
        engine.acknowledge(qpn, &self.device.regions.read(self.shard));
        if let Some(qp) = engine.schedule(qpn) {
            qp.transport.enter_error();
        }
        self.send_now(engine, self.clock().now());
    }
}
