//! What the judges share: mounting by the kernel, and comparing what two views of a volume show.
