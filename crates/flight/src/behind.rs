//! Work that can wait.

/// Lets all other threads that are not in real time go before the calling one, for good: nice 19. Names, packing, files and
/// explanations can wait some ms, packets cannot.
pub fn give_way() {
    // SAFETY: takes plain numbers; 0 is the calling thread, of which less may always be asked.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}
