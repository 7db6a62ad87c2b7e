//! What the parts of lines say that no pattern knows, until it is known that nothing near says more.

use std::collections::VecDeque;

use memchr::memmem;

use crate::Strength;
use crate::mention::{Speech, speech};
use crate::parts::{self, Inference};
use crate::table::{Role, Table};

/// Within how many lines of what a pattern knows nothing is inferred.
pub(crate) const NEAR: usize = 2;

/// What the parts of a line say.
#[derive(Debug)]
pub(crate) struct Supposition {
    pub(crate) number: usize,
    pub(crate) line: Vec<u8>,
    /// Where in the line the words for what failed stand.
    pub(crate) at: usize,
    pub(crate) inference: Inference,
}

/// What is supposed of the last lines, at most one thing of each.
#[derive(Debug, Default)]
pub(crate) struct Suppositions(VecDeque<Supposition>);

impl Suppositions {
    /// Keeps what the parts of a line say whose candidates these are. Returns whether it names what failed.
    pub(crate) fn suppose(
        &mut self,
        table: &Table,
        places: &[usize],
        number: usize,
        line: &[u8],
    ) -> bool {
        let Some(failure) = (places.last()).filter(|place| table.is_failure(**place)) else {
            return false;
        };
        // Lines of a difference are source code.
        if line.starts_with(b"+ ")
            || memmem::find(line, b" +  ").is_some()
            || table.matcher.find(*failure, line).is_none()
        {
            return false;
        }
        let mut names = false;
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
            self.keep(Supposition {
                number,
                line: line.to_vec(),
                at: found.start,
                inference,
            });
            break;
        }
        names
    }

    fn keep(&mut self, supposition: Supposition) {
        let same = |it: &&mut Supposition| it.number == supposition.number;
        match self.0.iter_mut().find(same) {
            None => self.0.push_back(supposition),
            // Together with the next line it says more.
            Some(known) if known.inference.strength < supposition.inference.strength => {
                *known = supposition;
            }
            Some(_) => {}
        }
    }

    /// Takes out the oldest one of a line that ends [`NEAR`] before this one.
    pub(crate) fn settled(&mut self, number: usize) -> Option<Supposition> {
        let oldest = self.0.front()?;
        (oldest.number + NEAR < number).then(|| self.0.pop_front())?
    }
}
