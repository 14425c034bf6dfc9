//! Compiles filter expressions (pcap-filter(7)) to classic BPF with libpcap, which is loaded only when an expression is
//! given: latpath builds and runs without it.

/// One instruction of classic BPF (bpf/event.h).
pub use crate::layout::Instruction;
use crate::layout::{Instructions, MAX_CODE};
use latpath_bpf::bytes_of;
use std::ffi::{c_char, c_int, c_uint, c_void, CStr, CString};

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Code {
    /// The instructions.
    pub instructions: Vec<Instruction>,
}

/// Why an expression cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadExpression {
    /// libpcap rejects it.
    #[error("{expression:?} is no filter: {said}")]
    Wrong {
        /// The expression.
        expression: String,
        /// libpcap's error message.
        said: String,
    },
    /// It depends on data outside the packet's bytes, which the kernel programs do not have.
    #[error("{0:?} asks for what is not in the packet's bytes (inbound, outbound, ifindex …): choose the device with -i instead")]
    NotBytes(String),
    /// It is too long.
    #[error("{expression:?} makes a filter of {len} instructions: at most {MAX_CODE} can be run")]
    TooLong {
        /// The expression.
        expression: String,
        /// Its number of instructions.
        len: usize,
    },
}

/// Why an expression cannot be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The expression is invalid.
    #[error(transparent)]
    Expression(#[from] BadExpression),
    /// libpcap cannot be loaded.
    #[error("filter expressions need libpcap, which is not here ({0}): install it (Debian: apt install libpcap0.8), or use --stream")]
    NoLibrary(String),
}

/// File names of the library in various distributions.
const NAMES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];
const ETHERNET: c_int = 1;
const UNKNOWN_NETMASK: c_uint = 0xffff_ffff;
/// A load from this offset or beyond depends on the kernel, not on the packet (linux/filter.h, SKF_NET_OFF).
const NOT_IN_PACKET: u32 = 0xfff0_0000;

/// `struct bpf_program` of libpcap.
#[repr(C)]
struct Program {
    len: c_uint,
    instructions: *mut Instruction,
}

type OpenDead = unsafe extern "C" fn(c_int, c_int) -> *mut c_void;
type Compile = unsafe extern "C" fn(*mut c_void, *mut Program, *const c_char, c_int, c_uint) -> c_int;
type FreeCode = unsafe extern "C" fn(*mut Program);
type GetError = unsafe extern "C" fn(*mut c_void) -> *const c_char;
type Close = unsafe extern "C" fn(*mut c_void);
type Filter = unsafe extern "C" fn(*const Instruction, *const u8, c_uint, c_uint) -> c_uint;

/// The library, loaded until the process ends.
pub struct Library {
    open_dead: OpenDead,
    compile: Compile,
    free_code: FreeCode,
    get_error: GetError,
    close: Close,
    filter: Filter,
}

impl Library {
    /// Loads the library.
    ///
    /// # Errors
    /// If it is not installed.
    pub fn load() -> Result<Self, CompileError> {
        let mut why = String::new();
        for name in NAMES {
            // SAFETY: the name is a C string; libpcap's initialisers do not affect this process's state.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
            if library.is_null() {
                // SAFETY: after a failure, dlerror returns a string that is valid until the next call.
                let said = unsafe { libc::dlerror() };
                if why.is_empty() && !said.is_null() {
                    // SAFETY: as above.
                    why = unsafe { CStr::from_ptr(said) }.to_string_lossy().into_owned();
                }
                continue;
            }
            let symbol = |name: &CStr| -> Result<*mut c_void, CompileError> {
                // SAFETY: the library stays loaded; the name is a C string.
                let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                let missing = || CompileError::NoLibrary(format!("it has no {}", name.to_string_lossy()));
                (!found.is_null()).then_some(found).ok_or_else(missing)
            };
            // SAFETY: each symbol is a function of libpcap's public interface, whose type is that in pcap(3) and
            // pcap/bpf.h.
            return unsafe {
                Ok(Self {
                    open_dead: std::mem::transmute::<*mut c_void, OpenDead>(symbol(c"pcap_open_dead")?),
                    compile: std::mem::transmute::<*mut c_void, Compile>(symbol(c"pcap_compile")?),
                    free_code: std::mem::transmute::<*mut c_void, FreeCode>(symbol(c"pcap_freecode")?),
                    get_error: std::mem::transmute::<*mut c_void, GetError>(symbol(c"pcap_geterr")?),
                    close: std::mem::transmute::<*mut c_void, Close>(symbol(c"pcap_close")?),
                    filter: std::mem::transmute::<*mut c_void, Filter>(symbol(c"bpf_filter")?),
                })
            };
        }
        Err(CompileError::NoLibrary(why))
    }

    /// Compiles an expression for Ethernet frames.
    ///
    /// # Errors
    /// If libpcap rejects it, or the kernel programs cannot run it.
    pub fn compile(&self, expression: &str) -> Result<Code, CompileError> {
        let wrong = |said: String| BadExpression::Wrong { expression: expression.into(), said };
        let text = CString::new(vlan_first(expression)).map_err(|_| wrong("it contains a NUL".into()))?;
        let mut program = Program { len: 0, instructions: std::ptr::null_mut() };
        // SAFETY: `dead` is valid until it is closed; `program` and `text` outlive the calls; the compiled program is
        // copied before it is freed, and freed only if it was created.
        let compiled = unsafe {
            let dead = (self.open_dead)(ETHERNET, 262_144);
            if dead.is_null() {
                return Err(wrong("libpcap is out of memory".into()).into());
            }
            let compiled = if (self.compile)(dead, &mut program, text.as_ptr(), 1, UNKNOWN_NETMASK) == 0 {
                let instructions = std::slice::from_raw_parts(program.instructions, program.len as usize).to_vec();
                (self.free_code)(&mut program);
                Ok(instructions)
            } else {
                Err(CStr::from_ptr((self.get_error)(dead)).to_string_lossy().into_owned())
            };
            (self.close)(dead);
            compiled
        };
        let code = Code { instructions: compiled.map_err(wrong)? };
        code.check(expression)?;
        Ok(code)
    }

    /// Runs a filter on a frame with libpcap's interpreter; returns its result, 0 for "no match".
    pub fn run(&self, code: &Code, frame: &[u8]) -> u32 {
        // SAFETY: the instructions come from libpcap's compiler or have passed `check`, so they terminate; the frame
        // has the given length.
        unsafe { (self.filter)(code.instructions.as_ptr(), frame.as_ptr(), frame.len() as u32, frame.len() as u32) }
    }
}

impl Code {
    /// Checks that the kernel programs can run it, and that it terminates: jumps go forward and stay inside, the last
    /// instruction returns, memory indexes and constant divisors are valid.
    ///
    /// # Errors
    /// Why the check failed; `expression` is quoted in the message.
    pub fn check(&self, expression: &str) -> Result<(), BadExpression> {
        let len = self.instructions.len();
        if len > MAX_CODE {
            return Err(BadExpression::TooLong { expression: expression.into(), len });
        }
        let odd = |at: usize| BadExpression::Wrong {
            expression: expression.into(),
            said: format!("libpcap made an unknown instruction of it (number {at})"),
        };
        for (at, i) in self.instructions.iter().enumerate() {
            let inside = |skip: u32| (skip as usize) < len - at - 1;
            let fine = match (i.code & 7, i.code & 0xe0, i.code & 0xf0) {
                (0 | 1, 0x20 | 0x40, _) if i.k >= NOT_IN_PACKET => {
                    return Err(BadExpression::NotBytes(expression.into()));
                }
                (0 | 1, 0x00 | 0x20 | 0x40 | 0x80 | 0xa0, _) => i.code & 0x18 != 0x18,
                (0 | 1, 0x60, _) | (2 | 3, ..) => i.k < 16,
                (4, _, 0x30 | 0x90) => i.code & 8 != 0 || i.k != 0,
                (4, _, 0x80) => i.code & 8 == 0,
                (4, _, op) => op <= 0xa0,
                (5, _, 0x00) => inside(i.k),
                (5, _, op) => op <= 0x40 && inside(i.jt.into()) && inside(i.jf.into()),
                (6 | 7, ..) => true,
                _ => false,
            };
            if !fine {
                return Err(odd(at));
            }
        }
        match self.instructions.last() {
            Some(i) if i.code & 7 == 6 => Ok(()),
            _ => Err(odd(len)),
        }
    }

    /// Encodes the code for the programs' table: its length, and all slots.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let len = self.instructions.len();
        let mut table = Instructions { len: len as u32, ..Instructions::default() };
        table.at[..len].copy_from_slice(&self.instructions);
        bytes_of(&table).to_vec()
    }
}

/// Moves VLAN conditions to the front of an expression that is a conjunction.
///
/// `vlan` shifts the offsets of later conditions past the tag, but not those of earlier ones (pcap-filter(7)): "ether
/// proto 0x88ba and vlan 7" would match no frame here. In a capture on a device it matches, because the kernel removes
/// the tag first; moving the condition makes it match here too.
fn vlan_first(expression: &str) -> String {
    let spaced = expression.replace("&&", " and ").replace("||", " or ");
    let (mut depth, mut terms) = (0i32, vec![Vec::new()]);
    for word in spaced.split_whitespace() {
        match (depth, word) {
            (0, "or") => return expression.into(),
            (0, "and") => terms.push(Vec::new()),
            _ => terms.last_mut().expect("it begins with one").push(word),
        }
        depth += word.matches(['(', '[']).count() as i32 - word.matches([')', ']']).count() as i32;
    }
    let (tags, others): (Vec<_>, Vec<_>) = terms.into_iter().partition(|t| t.first() == Some(&"vlan"));
    if tags.is_empty() || others.is_empty() {
        return expression.into();
    }
    tags.iter().chain(&others).map(|t| t.join(" ")).collect::<Vec<_>>().join(" and ")
}

/// Compiles an expression for Ethernet frames.
///
/// # Errors
/// If libpcap is missing, or rejects the expression, or the kernel programs cannot run it.
pub fn compile(expression: &str) -> Result<Code, CompileError> {
    Library::load()?.compile(expression)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(instructions: &[(u16, u8, u8, u32)]) -> Code {
        Code { instructions: instructions.iter().map(|&(code, jt, jf, k)| Instruction { code, jt, jf, k }).collect() }
    }

    #[test]
    fn texts_without_an_end_are_refused() {
        assert!(code(&[(0x06, 0, 0, 1)]).check("x").is_ok());
        assert!(code(&[(0x15, 1, 0, 1), (0x06, 0, 0, 1)]).check("x").is_err(), "a jump out");
        assert!(code(&[(0x05, 0, 0, 9), (0x06, 0, 0, 1)]).check("x").is_err(), "a long jump out");
        assert!(code(&[(0x28, 0, 0, 12)]).check("x").is_err(), "no return");
        assert!(code(&[]).check("x").is_err());
        assert!(code(&[(0x34, 0, 0, 0), (0x06, 0, 0, 1)]).check("x").is_err(), "a division by zero");
        assert!(code(&[(0x60, 0, 0, 16), (0x06, 0, 0, 1)]).check("x").is_err(), "memory that is not there");
    }

    #[test]
    fn a_tag_may_be_requested_anywhere_in_a_row() {
        assert_eq!(vlan_first("ether proto 0x88ba and vlan 7"), "vlan 7 and ether proto 0x88ba");
        assert_eq!(vlan_first("udp && (port 1 or port 2) && vlan"), "vlan and udp and (port 1 or port 2)");
        assert_eq!(vlan_first("vlan 5 and arp"), "vlan 5 and arp");
        for as_it_is in
            ["udp", "arp or vlan 7", "udp and (vlan 7 or arp)", "ip and not vlan", "vlan", "ip[0] & 1 = 0 && udp", ""]
        {
            assert_eq!(vlan_first(as_it_is), as_it_is);
        }
    }

    #[test]
    fn accesses_beyond_the_bytes_are_refused() {
        let inbound = code(&[(0x30, 0, 0, 0xffff_f004), (0x06, 0, 0, 1)]);
        assert!(matches!(inbound.check("inbound"), Err(BadExpression::NotBytes(_))));
    }
}
