//! A packet's way back over several machines: walks on each of them, and how one leads to another.

use crate::{
    guests::Guests,
    machine::Machine,
    queue::{lies_between, By, Sightings},
    walk::{Call, Context, End, Hold, Question, Walk},
    Cause, Piece,
};
use latpath_capture::PacketSighting;
use latpath_flight::Doing;
use latpath_model::{Link, Ns, PointInfo, PointKind};

/// Machines that one trail leads over.
const MOST_CROSSINGS: usize = 8;

/// A sighting with its point, and its machine's place in the capture.
#[derive(Clone, Copy)]
pub(crate) struct Sighting<'s> {
    pub seen: &'s PacketSighting,
    pub info: &'s PointInfo,
    pub place: usize,
}

/// From the later sighting back to the earlier.
pub(crate) struct Trail<'t> {
    machines: &'t [Machine],
    guests: &'t Guests,
    a: Sighting<'t>,
    b: Sighting<'t>,
    question: Question,
    t: Ns,
    /// The latest first.
    pieces: Vec<Piece>,
}

/// Where a trail is.
enum Place {
    /// On a machine, in somebody's hands.
    At(usize, Context),
    /// A guest's CPU was called by the host, with this interrupt; or the guest itself cannot say what it did before.
    Called { guest: usize, cpu: u32, by: Result<Doing, String> },
    /// It cannot be followed further.
    End(Cause, usize, String),
}

impl<'t> Trail<'t> {
    pub fn new(
        machines: &'t [Machine],
        guests: &'t Guests,
        sightings: &Sightings,
        a: Sighting<'t>,
        b: Sighting<'t>,
    ) -> Self {
        let machine = &machines[b.place];
        let served_by = match Context::of_sighting(machine, b.info, b.seen) {
            Context::Thread(tid) => By::Thread(tid),
            _ => By::Cpu(b.seen.cpu),
        };
        let question = Question {
            a: a.seen.t,
            b: b.seen.t,
            cpu_of_a: u32::from(a.seen.cpu),
            machine_of_a: a.place,
            queue: lies_between(a.info, b.info),
            sends: b.info.point.kind == PointKind::Tx,
            upcall: matches!(a.info.point.kind, PointKind::OvsUpcall | PointKind::OvsSlow),
            ahead: sightings.between(b.seen.point, a.seen.t, b.seen.t, served_by),
        };
        Self { machines, guests, a, b, question, t: b.seen.t, pieces: Vec::new() }
    }

    /// All of it, the latest piece first.
    pub fn follow(mut self) -> Vec<Piece> {
        let machine = &self.machines[self.b.place];
        let mut place = match &machine.without {
            Some(_) => self.without_record(self.b.place, u32::from(self.b.seen.cpu)),
            None => Place::At(self.b.place, Context::of_sighting(machine, self.b.info, self.b.seen)),
        };
        for _ in 0..MOST_CROSSINGS {
            if self.t <= self.question.a {
                break;
            }
            place = match place {
                Place::At(at, context) => self.walk(at, context),
                Place::Called { guest, cpu, by } => self.cross(guest, cpu, by),
                Place::End(..) => break,
            };
        }
        if self.t > self.question.a {
            let (cause, machine, why) = match place {
                Place::End(cause, machine, why) => (cause, machine, why),
                _ => (Cause::Unexplained, 0, "more machines handed it on than is told".into()),
            };
            self.pieces.push(unsaid(cause, machine, self.question.a, self.t, why));
        }
        self.joints();
        self.pieces
    }

    fn take(&mut self, pieces: Vec<Piece>) {
        self.t = pieces.last().map_or(self.t, |piece| piece.from);
        pieces.into_iter().for_each(|piece| push(&mut self.pieces, piece));
    }

    fn walk(&mut self, at: usize, context: Context) -> Place {
        let mut walk = Walk::new(&self.machines[at], at, &self.question, &self.guests.vcpus, self.t);
        walk.reader = self.pieces.is_empty();
        let end = walk.go(context);
        let pieces = walk.pieces;
        let last_cpu = pieces.last().and_then(|piece| piece.cpu).unwrap_or(u32::from(self.b.seen.cpu));
        let pieces = if at == 0 { pieces } else { self.with_host(at, pieces) };
        self.take(pieces);
        match end {
            End::There => Place::End(Cause::Unexplained, at, String::new()),
            End::Inside { thread, vcpu } => self.enter(thread, vcpu),
            End::Outside { cpu, doing, why } if at != 0 => match self.guests.vcpus.thread(at, cpu) {
                Some(_) => Place::Called { guest: at, cpu, by: Ok(doing) },
                None => {
                    Place::End(Cause::Unexplained, at, format!("{why}, nor which thread of the host runs CPU {cpu}"))
                }
            },
            End::Outside { why, .. } if self.over_wire() => Place::End(Cause::Device, at, why),
            End::Lost(why) if at != 0 && self.a.place != at => Place::Called { guest: at, cpu: last_cpu, by: Err(why) },
            End::Outside { why, .. } | End::Lost(why) => Place::End(Cause::Unexplained, at, why),
        }
    }

    /// Only devices lie between the two sightings.
    fn over_wire(&self) -> bool {
        use PointKind::{NicRx, Tx, TxDone, XdpRedirect};
        matches!(self.a.info.point.kind, Tx | TxDone)
            && matches!(self.b.info.point.kind, NicRx | XdpRedirect | TxDone)
            && self.a.info.link == Link::Nic
            && self.b.info.link == Link::Nic
    }

    /// A machine that did not record; its vCPUs' threads may tell something, if it is a guest.
    fn without_record(&self, place: usize, cpu: u32) -> Place {
        let machine = &self.machines[place];
        let why = format!("no record of {}: {}", machine.name, machine.without.as_deref().unwrap_or_default());
        match self.guests.vcpus.thread(place, cpu) {
            Some(_) if place != 0 => Place::Called { guest: place, cpu, by: Err(why) },
            _ => Place::End(Cause::Unexplained, place, why),
        }
    }

    /// From a guest to the host: to the one who called its CPU.
    fn cross(&mut self, guest: usize, cpu: u32, by: Result<Doing, String>) -> Place {
        let host = &self.machines[0];
        let Some(vcpu) = self.guests.vcpus.thread(guest, cpu) else {
            let why = by.err().unwrap_or_else(|| format!("which thread of the host runs CPU {cpu} is not known"));
            return Place::End(Cause::Unexplained, guest, why);
        };
        if let Some(why) = &host.without {
            return Place::End(Cause::Unexplained, 0, format!("no record of {}: {why}", host.name));
        }
        let (inside, unknown) = match &by {
            Err(why) => {
                let unsaid = Piece { cpu: Some(cpu), ..unsaid(Cause::Unexplained, guest, 0, 0, why.clone()) };
                (unsaid.clone(), unsaid)
            }
            Ok(_) => {
                let actor = Some(host.thread(vcpu, self.t));
                let why = host.why_unknown(None, self.t.saturating_sub(1));
                let why = format!("what {} did is not known: {why}", host.thread(vcpu, self.t).name);
                let unsaid = unsaid(Cause::Unexplained, 0, 0, 0, why);
                (Piece { cause: Cause::IrqInjection, actor, note: None, ..unsaid.clone() }, unsaid)
            }
        };
        let mut walk = Walk::new(host, 0, &self.question, &self.guests.vcpus, self.t);
        walk.reader = false;
        let carried = self.a.place == 0 && self.a.info.point.kind == PointKind::VmRead;
        let next = if by.is_err() && self.a.place == guest {
            let asleep = Cause::VcpuHalted;
            walk.hold(self.question.a, Hold { vcpu, inside: &inside, unknown: &unknown, asleep });
            Err(End::There)
        } else {
            walk.called(&Call {
                vcpu,
                carrier: carried.then_some(self.a.seen.tid),
                carriers: self.guests.carriers(guest),
                blind: by.is_err(),
                inside: &inside,
                unknown: &unknown,
            })
        };
        let pieces = match by {
            Ok(interrupt) => self.pending(walk.pieces, guest, cpu, &interrupt),
            Err(_) => walk.pieces,
        };
        self.take(pieces);
        match next {
            Ok(context) => Place::At(0, context),
            Err(End::Lost(why) | End::Outside { why, .. }) => Place::End(Cause::Unexplained, 0, why),
            Err(_) => Place::End(Cause::Unexplained, 0, String::new()),
        }
    }

    /// While an interrupt was pending and the vCPU ran: what its guest did instead of taking it.
    fn pending(&self, pieces: Vec<Piece>, guest: usize, cpu: u32, interrupt: &Doing) -> Vec<Piece> {
        let machine = &self.machines[guest];
        let mut told = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.cause != Cause::IrqInjection {
                push(&mut told, piece);
                continue;
            }
            for tile in machine.tiles(cpu, piece.from, piece.to).into_iter().rev() {
                let like = Piece { from: tile.from, to: tile.to, ..piece.clone() };
                push(
                    &mut told,
                    match tile.doing {
                        Doing::Idle { .. } | Doing::Unknown => like,
                        doing => Piece {
                            actor: Some(machine.who(interrupt, tile.to)),
                            by: Some(machine.who(&doing, tile.from)),
                            machine: guest,
                            cpu: Some(cpu),
                            ..like
                        },
                    },
                );
            }
        }
        told
    }

    /// From the host into the guest that has the earlier sighting: what it did before its vCPU's thread acted on the host.
    fn enter(&mut self, thread: u32, vcpu: Option<u32>) -> Place {
        let guest = self.a.place;
        let cpu = vcpu.unwrap_or(u32::from(self.a.seen.cpu));
        let machine = &self.machines[guest];
        let (context, why) = match &machine.without {
            Some(why) => (None, format!("no record of {}: {why}", machine.name)),
            None => match Context::of(cpu, machine.at(cpu, self.t)) {
                Context::Nobody { .. } => (None, machine.why_unknown(Some(cpu), self.t)),
                context => (Some(context), String::new()),
            },
        };
        if let Some(context) = context {
            return Place::At(guest, context);
        }
        let mut walk = Walk::new(&self.machines[0], 0, &self.question, &self.guests.vcpus, self.t);
        let inside = Piece { cpu: Some(cpu), ..unsaid(Cause::Unexplained, guest, 0, 0, why) };
        let (vcpu, asleep) = (thread, Cause::VcpuHalted);
        walk.hold(self.question.a, Hold { vcpu, inside: &inside, unknown: &inside, asleep });
        let pieces = walk.pieces;
        self.take(pieces);
        Place::End(Cause::Unexplained, guest, String::new())
    }

    /// A guest's pieces, with what the host says of its vCPUs' threads at these times.
    fn with_host(&self, guest: usize, pieces: Vec<Piece>) -> Vec<Piece> {
        let host = &self.machines[0];
        if host.without.is_some() {
            return pieces;
        }
        let mut told = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let thread = piece.cpu.and_then(|cpu| self.guests.vcpus.thread(guest, cpu));
            let chosen = matches!(piece.cause, Cause::PollInterval | Cause::QdiscHeld);
            let Some(thread) = thread.filter(|_| !chosen) else {
                push(&mut told, piece);
                continue;
            };
            let asleep = if piece.is_idle() { Cause::VcpuHalted } else { Cause::VmExit };
            let mut walk = Walk::new(host, 0, &self.question, &self.guests.vcpus, piece.to);
            walk.hold(piece.from, Hold { vcpu: thread, inside: &piece, unknown: &piece, asleep });
            walk.pieces.into_iter().for_each(|piece| push(&mut told, piece));
        }
        told
    }

    /// Where one machine's pieces meet another's, times are known only as well as the two clocks' difference is.
    fn joints(&mut self) {
        let bound = |place: usize| self.machines.get(place).map_or(0, |machine| machine.error_bound);
        for at in 1..self.pieces.len() {
            let (later, earlier) = (self.pieces[at - 1].machine, self.pieces[at].machine);
            let bound = bound(later).max(bound(earlier));
            if later == earlier || bound == 0 {
                continue;
            }
            for piece in &mut self.pieces[at - 1..=at] {
                if piece.took() <= bound {
                    let note = format!("joined: two machines' clocks are known to ±{bound} ns");
                    piece.note = Some(piece.note.take().map_or(note.clone(), |before| {
                        if before.contains("joined: ") {
                            before
                        } else {
                            format!("{before}; {note}")
                        }
                    }));
                }
            }
        }
    }
}

/// Adds what was before, to the last one where it is the same.
fn push(pieces: &mut Vec<Piece>, piece: Piece) {
    match pieces.last_mut() {
        Some(later) if later.is_like(&piece) => later.from = piece.from,
        _ => pieces.push(piece),
    }
}

/// A piece of which nothing more is known.
pub(crate) fn unsaid(cause: Cause, machine: usize, from: Ns, to: Ns, why: String) -> Piece {
    Piece { from, to, cause, actor: None, by: None, machine, cpu: None, number: None, state: None, note: Some(why) }
}
