// Light, dark, or as the system says.

import { signal } from "@preact/signals";

type Theme = "auto" | "light" | "dark";
const NAME = "leasehold.theme";

function stored(): Theme {
  try {
    const value = localStorage.getItem(NAME);
    return value === "light" || value === "dark" ? value : "auto";
  } catch {
    return "auto";
  }
}

const theme = signal<Theme>(stored());
const apply = () => {
  if (theme.value === "auto") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme.value;
};
apply();

const NEXT: Record<Theme, Theme> = { auto: "light", light: "dark", dark: "auto" };
const WORDS: Record<Theme, string> = { auto: "as the system", light: "light", dark: "dark" };

export function ThemeButton() {
  const change = () => {
    theme.value = NEXT[theme.value];
    try {
      localStorage.setItem(NAME, theme.value);
    } catch {
      // It lasts until the page is closed.
    }
    apply();
  };
  return (
    <button type="button" class="icon-button" onClick={change} title={`Colours: ${WORDS[theme.value]}`} aria-label={`Colours: ${WORDS[theme.value]}. Change`}>
      <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
        {theme.value === "light" ? (
          <path d="M10 6a4 4 0 1 0 0 8 4 4 0 0 0 0-8Zm0-4v2m0 12v2M2 10h2m12 0h2M4.3 4.3l1.4 1.4m8.6 8.6 1.4 1.4m0-11.4-1.4 1.4M5.7 14.3l-1.4 1.4" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linecap="round" />
        ) : theme.value === "dark" ? (
          <path d="M16.5 12.2A7 7 0 0 1 7.8 3.5a7 7 0 1 0 8.7 8.7Z" fill="none" stroke="currentColor" stroke-width="1.5" stroke-linejoin="round" />
        ) : (
          <path d="M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14Zm0 0v14a7 7 0 0 0 0-14Z" fill="currentColor" fill-rule="evenodd" clip-rule="evenodd" stroke="currentColor" stroke-width="1.2" />
        )}
      </svg>
    </button>
  );
}
