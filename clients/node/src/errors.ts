/** Why calls fail. */

/** An error of the engine; `name` is one of those of section 2.2 of the protocol. */
export class ScalerError extends Error {
  constructor(
    name: string,
    message: string,
    readonly details: Record<string, unknown> = {},
  ) {
    super(message);
    this.name = name;
  }
}

/** What the called function raised: `name` is the type of the exception in Python. */
export class RemoteError extends Error {
  constructor(
    name: string,
    message: string,
    /** The traceback from the worker. */
    readonly traceback: string,
  ) {
    super(message);
    this.name = name;
  }
}

/** The call was cancelled. */
export class CancelledError extends Error {
  override readonly name = "CancelledError";
}

interface Described {
  error: string;
  message: string;
  details: Record<string, unknown>;
}

/** The error in a payload. What describes none is the message itself: other programs may have sent anything. */
function described(payload: Uint8Array): Described {
  const text = Buffer.from(payload).toString();
  try {
    const { error, message, details } = JSON.parse(text) as Described;
    if (typeof error === "string" && typeof message === "string" && details instanceof Object) return { error, message, details };
  } catch {
    // it is no JSON, or null
  }
  return { error: "ScalerError", message: `no error, but ${text.slice(0, 1000)}`, details: {} };
}

/** The error in the payload of a FAILED outcome. */
export function failure(payload: Uint8Array): ScalerError {
  const { error, message, details } = described(payload);
  return new ScalerError(error, message, details);
}

/** The exception in the payload of a RAISED outcome in encoding JSON. */
export function raised(payload: Uint8Array): RemoteError {
  const { error, message, details } = described(payload);
  return new RemoteError(error, message, String(details.traceback ?? ""));
}
