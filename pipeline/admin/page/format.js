// Numbers as people read them. Times come in microseconds, as the server counts them.

const NONE = "\u2013";
const digits = (value, places) => value.toLocaleString("en-US", {
  minimumFractionDigits: places, maximumFractionDigits: places,
});

/** Three figures: 1.23, 12.3, 123. */
export function short(value) {
  if (value === null || value === undefined) return NONE;
  const size = Math.abs(value);
  if (size >= 1e6) return `${short(value / 1e6)}M`;
  if (size >= 1e4) return `${short(value / 1e3)}k`;
  if (Number.isInteger(value) || size >= 100) return digits(Math.round(value), 0);
  return digits(value, size < 10 ? 2 : 1).replace(/\.?0+$/, "");
}

export function time(us) {
  if (us === null || us === undefined) return NONE;
  if (us < 1000) return `${Math.round(us)} \u00b5s`;
  if (us < 1e6) return `${figures(us / 1e3)} ms`;
  return `${figures(us / 1e6)} s`;
}

const figures = (value) => digits(value, value < 10 ? 2 : value < 100 ? 1 : 0);

/** A round time for an axis. */
export function tick(us) {
  if (us < 1000) return `${short(us)} \u00b5s`;
  return us < 1e6 ? `${short(us / 1e3)} ms` : `${short(us / 1e6)} s`;
}

export const rate = (perS) => `${short(perS)}/s`;

/** A share of 1 as a percentage; something is never shown as nothing. */
export function percent(share) {
  if (share > 0 && share < 0.005) return "<1 %";
  return `${Math.round(share * 100)} %`;
}

export function bytes(count) {
  return count < 1e9 ? `${Math.round(count / 1e6)} MB` : `${digits(count / 1e9, 1)} GB`;
}
