// Numbers as the pages' tables have them: three digits that count.
export function significant(value) {
  const digits = Math.abs(value) >= 1000 ? 0 : 3;
  return digits
    ? Number(value.toPrecision(digits)).toLocaleString("en-US", { maximumFractionDigits: 6 })
    : Math.round(value).toLocaleString("en-US");
}

export const percent = (share) => `${Math.round(100 * share)}%`;
