// The frames that wait for the socket of a link. A graph that emits faster than the server reads is held up: Node sends
// on the thread of the graph and would keep everything meanwhile.

import { writeSync } from "node:fs";
import type { Socket } from "node:net";

/** The socket gets the next frames once it has sent all but this. */
const SENDING_BYTES = 1024 * 1024;
/** Above this the thread sends and does nothing else, until less than SENDING_BYTES wait. */
const MAX_WAITING_BYTES = 32 * 1024 * 1024;
/** For at most this at a time: the server must hear from this process. */
const BLOCK_AT_MOST_MS = 2000;
const POLL_MS = 1;
/** While the server reads nothing, the thread pauses for this in each turn of its loop. */
const PAUSE_MS = 200;

/** Frames in their order, which the socket gets piece by piece. */
export class Outgoing {
  private frames: Buffer[] = [];
  private bytes = 0;
  private hasPaused = false;
  private readonly sleeping = new Int32Array(new SharedArrayBuffer(4));

  constructor(private readonly socket: Socket) {
    socket.on("drain", () => this.continue());
  }

  /** How many bytes the socket has not got yet. */
  get waitingBytes(): number {
    return this.bytes;
  }

  add(frame: Buffer): void {
    this.frames.push(frame);
    this.bytes += frame.length;
  }

  /** Send what waits as far as the server reads; the rest follows. */
  flush(): void {
    while (this.bytes > 0 && this.socket.writableLength < SENDING_BYTES) {
      this.socket.write(this.take(SENDING_BYTES));
    }

    if (this.bytes > 2 * MAX_WAITING_BYTES) {
      this.pause();
    }
  }

  /** Send everything, and end the connection. */
  end(): void {
    if (this.bytes > 0) {
      this.socket.write(this.take(this.bytes));
    }

    this.socket.end();
  }

  /** The socket has sent what it had. */
  private continue(): void {
    if (this.bytes > MAX_WAITING_BYTES) {
      this.sendBlocking();
    }

    this.flush();
  }

  /** Send on this thread. The socket has nothing to send, so that the order is kept. */
  private sendBlocking(): void {
    const descriptor = (this.socket as { _handle?: { fd?: number } })._handle?.fd ?? -1;
    const until = performance.now() + BLOCK_AT_MOST_MS;

    while (descriptor >= 0 && this.bytes > SENDING_BYTES && performance.now() < until) {
      const piece = this.take(SENDING_BYTES);
      const sent = trySending(descriptor, piece);
      if (sent === null) {
        // The socket says so too, which ends the link.
        return;
      }

      if (sent < piece.length) {
        this.frames.unshift(piece.subarray(sent));
        this.bytes += piece.length - sent;
        Atomics.wait(this.sleeping, 0, 0, POLL_MS);
      }
    }
  }

  /** Let a graph that goes on although the server reads nothing wait, once in a turn of the loop. */
  private pause(): void {
    if (this.hasPaused) {
      return;
    }

    this.hasPaused = true;
    setImmediate(() => {
      this.hasPaused = false;
    });
    Atomics.wait(this.sleeping, 0, 0, PAUSE_MS);
  }

  /** Take frames of about this many bytes. */
  private take(bytes: number): Buffer {
    let count = 0;
    let taken = 0;
    while (taken < bytes && count < this.frames.length) {
      taken += (this.frames[count] as Buffer).length;
      count += 1;
    }

    const frames = this.frames.splice(0, count);
    this.bytes -= taken;
    return frames.length === 1 ? (frames[0] as Buffer) : Buffer.concat(frames);
  }
}

/** Return how many bytes the system took, or null if the connection is lost. */
function trySending(descriptor: number, piece: Buffer): number | null {
  try {
    return writeSync(descriptor, piece);
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EAGAIN" ? 0 : null;
  }
}
